"""States that agents name, in this process and in one of their own, on the calls of the openai client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import spangrad
from spangrad.gateway import Gateway
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutResult
from spangrad.store import RolloutStatus, Store
from spangrad.transitions import extract

Play = Callable[..., Awaitable[RolloutResult]]


def said_and_states(store: Store, rollout_id: str = "r") -> dict[str, tuple[str | None, float | None]]:
    calls = store.calls(rollout_id)
    return {call.request["messages"][-1]["content"]: (call.state, call.score) for call in calls}


async def test_calls_of_parallel_branches_carry_their_own_states(play_agent: Play, echo_store: Store) -> None:
    async def agent(_: Any, rollout: spangrad.Rollout) -> float:
        async with openai.AsyncOpenAI() as client:

            async def call(text: str, **options: Any) -> None:
                messages: Any = [{"role": "user", "content": text}]
                await client.chat.completions.create(model="echo", messages=messages, **options)

            async def branch(name: str, score: float) -> None:
                await call(f"{name} first")
                rollout.state(name, score)
                await call(f"{name} second")

            await call("before")
            rollout.state("root")
            await asyncio.gather(branch("left", 0.25), branch("right", 0.75))
            await call("named by header", extra_headers={"X-Spangrad-State": "other", "x-spangrad-score": "2"})
            rollout.state(None)
            await call("after")
        return 1.0

    with load_plugins().attached():
        result = await play_agent(agent)
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert said_and_states(echo_store) == {
        "before": (None, None),
        "left first": ("root", None),
        "right first": ("root", None),
        "left second": ("left", 0.25),
        "right second": ("right", 0.75),
        "named by header": ("other", 2.0),
        "after": (None, None),
    }
    transitions = extract(result.record, echo_store.calls("r"), result.rewards).transitions
    assert sorted((t.state or "", t.score or 0.0) for t in transitions) == sorted(
        (state or "", score or 0.0) for state, score in said_and_states(echo_store).values()
    )


async def test_threads_and_executors_of_an_agent_begin_with_its_state(play_agent: Play, echo_store: Store) -> None:
    def agent(_: Any, rollout: spangrad.Rollout) -> float:
        with openai.OpenAI() as client, ThreadPoolExecutor(2) as pool:

            def call(text: str) -> None:
                messages: Any = [{"role": "user", "content": text}]
                client.chat.completions.create(model="echo", messages=messages)

            for state in ("first", "second"):
                rollout.state(state)
                list(pool.map(call, [f"{state} a", f"{state} b"]))
        return 1.0

    with load_plugins().attached():
        result = await play_agent(agent)
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert {said: state for said, (state, _) in said_and_states(echo_store).items()} == {
        "first a": "first",
        "first b": "first",
        "second a": "second",
        "second b": "second",
    }


async def test_a_program_of_its_own_names_states(play_agent: Play, echo_store: Store, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        """
import openai, spangrad
with spangrad.rollout() as r, openai.OpenAI() as client:
    for number in range(2):
        r.state(f"room {number}", number / 2)
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": str(number)}])
"""
    )
    result = await play_agent([sys.executable, str(program)], lambda: 1.0, timeout=60)
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert said_and_states(echo_store) == {"0": ("room 0", 0.0), "1": ("room 1", 0.5)}


def test_a_rollout_opened_over_http_names_states(
    echo_gateway: Gateway, echo_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANGRAD_URL", echo_gateway.base_url)
    monkeypatch.setenv("SPANGRAD_KEY", echo_gateway.evaluator_key)
    with (
        spangrad.rollout(task_id="t") as r,
        openai.OpenAI(base_url=f"{echo_gateway.base_url}/v1", api_key="none") as client,
    ):
        r.state("kitchen", 0.5)
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "x"}])
        r.reward(1)
    assert said_and_states(echo_store, r.id) == {"x": ("kitchen", 0.5)}
