"""Agents that outlast their time are stopped, or left behind where they cannot be."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store
from spangrad.transitions import CallStatus

PlayAgent = Callable[..., Awaitable[RolloutResult]]


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was told to stop gets a fifth of a second to do so."""
    monkeypatch.setattr("spangrad.rollouts._lanes.GRACE", 0.2)


async def ask_async(rollout: Rollout, text: str = "x") -> None:
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])


def ask(rollout: Rollout, text: str = "x") -> None:
    with openai.OpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])


async def test_an_async_agent_that_hangs_is_cancelled(play_agent: PlayAgent, echo_store: Store) -> None:
    ended = threading.Event()

    async def agent(task: Any, rollout: Rollout) -> None:
        del task
        try:
            await ask_async(rollout, "wait")
        finally:
            ended.set()

    result = await play_agent(agent, timeout=1)
    assert result.status is RolloutStatus.TIMED_OUT
    assert result.error == "The agent was still running after 1 seconds"
    assert ended.is_set()
    assert [call.status for call in echo_store.calls("r")] == [CallStatus.UNDELIVERED]


@pytest.mark.usefixtures("short_grace")
async def test_a_plain_agent_that_hangs_is_left_behind_and_its_later_calls_fail(
    play_agent: PlayAgent, echo_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    release, refused = threading.Event(), threading.Event()

    def agent(task: Any, rollout: Rollout) -> None:
        del task
        release.wait(20)
        try:
            ask(rollout)
        except openai.APIStatusError:
            refused.set()

    with caplog.at_level(logging.WARNING, "spangrad.rollouts"):
        result = await play_agent(agent, timeout=0.3)
    assert result.status is RolloutStatus.TIMED_OUT
    assert "left behind" in caplog.text
    release.set()
    assert await asyncio.to_thread(refused.wait, 20)
    assert [call.status for call in echo_store.calls("r")] == [CallStatus.LATE]


async def test_a_plain_agent_that_waits_for_the_model_is_freed_by_the_gateway(play_agent: PlayAgent) -> None:
    result = await play_agent(lambda task, rollout: ask(rollout, "wait"), timeout=1)  # noqa: ARG005 - the agent's parameters
    assert result.status is RolloutStatus.TIMED_OUT


@pytest.mark.usefixtures("short_grace")
async def test_an_agent_that_blocks_the_loop_costs_the_others_nothing_later(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    release = threading.Event()

    async def agent(task: Any, rollout: Rollout) -> float:
        if task["text"] == "block":
            release.wait(20)
        await ask_async(rollout)
        return 1.0

    jobs = [
        RolloutJob(f"r{i}", 1, "g", Task("t", {"text": text}), "train", 1) for i, text in enumerate(["block", "x", "x"])
    ]
    with Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=1, timeout=3) as runner:
        results = await runner.run(jobs)
        assert runner.abandoned == 1
        release.set()
    loops = [thread for thread in threading.enumerate() if thread.name == "spangrad-agents"]
    for thread in loops:  # once free, it ends by itself
        await asyncio.to_thread(thread.join, 20)
    assert not any(thread.is_alive() for thread in loops)
    assert [r.status for r in results] == [RolloutStatus.TIMED_OUT, RolloutStatus.SUCCEEDED, RolloutStatus.SUCCEEDED]
