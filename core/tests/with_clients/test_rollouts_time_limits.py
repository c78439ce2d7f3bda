"""Agents that outlast their time are stopped, or left behind where they cannot be."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from spangrad.capture import Rollout
from spangrad.errors import RewardError
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store
from spangrad.transitions import CallStatus, FailureKind, FailurePolicies, FailurePolicy, Treatment

PlayAgent = Callable[..., Awaitable[RolloutResult]]

COMMAND = """\
import json, os, signal, sys, time, urllib.request

def ask(*_):
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "x"}]}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, headers))
    finally:
        sys.exit()

signal.signal(signal.SIGTERM, ask)
time.sleep(60)
"""
"""Calls the model when it is told to end."""


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


@pytest.mark.parametrize("treatment", [Treatment.KEEP, Treatment.PENALISE, Treatment.DROP])
async def test_what_an_agent_is_given_once_its_time_is_over_is_refused_by_every_road_and_what_it_had_stays(
    echo_gateway: Gateway, echo_store: Store, treatment: Treatment
) -> None:
    """The agent is cancelled, and goes on in its `except` and `finally`, well within the grace it is left."""
    refused: list[object] = []
    key = {"authorization": f"Bearer {echo_gateway.evaluator_key}"}
    url = f"{echo_gateway.base_url}/rollouts/r/attempts/1/rewards"

    def give(rollout: Rollout, call_id: str | None) -> None:
        try:
            rollout.reward(5.0, "late", call_id)
        except RewardError as error:
            refused.append(error.what)

    async def agent(task: Any, rollout: Rollout) -> None:
        del task
        await ask_async(rollout)
        rollout.reward(0.25, "early")
        async with httpx.AsyncClient(headers=key) as evaluator:
            await evaluator.post(url, json={"value": 0.5, "name": "early over HTTP"})
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                try:
                    await ask_async(rollout)
                except openai.ConflictError as error:
                    refused.append(error.code)
                answer = await evaluator.post(url, json={"value": 5.0, "name": "late"})
                refused.append(answer.json()["error"]["code"])
            finally:
                give(rollout, None)
                give(rollout, echo_store.calls("r")[0].call_id)

    failures = FailurePolicies({FailureKind.TIMED_OUT: FailurePolicy(treatment, reward=-1.0)})
    runner = Runner(
        load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=1, timeout=2, failures=failures
    )
    with runner:
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {}), "train", 1)])

    assert result.status is RolloutStatus.TIMED_OUT
    late = "Rollout r has ended, so the reward 'late' comes too late"
    assert refused == ["rollout_closed", "rollout_closed", late, late]
    penalty = {"failure": -1.0} if treatment is Treatment.PENALISE else {}
    assert {r.name: r.value for r in echo_store.rewards("r")} == {"early": 0.25, "early over HTTP": 0.5, **penalty}
    assert runner.late == {"calls": 1, "spans": 0, "rewards": 3}


async def test_a_command_whose_time_is_over_cannot_call_while_it_is_told_to_end(
    play_agent: PlayAgent, echo_store: Store, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(COMMAND)

    result = await play_agent([sys.executable, str(script)], timeout=2)

    assert result.status is RolloutStatus.TIMED_OUT
    assert [call.status for call in echo_store.calls("r")] == [CallStatus.LATE]


async def test_a_reward_function_whose_time_is_over_rewards_no_more(play_agent: PlayAgent, echo_store: Store) -> None:
    refused: list[str] = []

    async def reward(rollout: Rollout) -> None:
        rollout.reward(0.25, "early")
        try:
            await asyncio.sleep(60)
        finally:
            try:
                rollout.reward(5.0, "late")
            except RewardError as error:
                refused.append(error.what)

    result = await play_agent(lambda task, rollout: ask(rollout), reward, timeout=2)  # noqa: ARG005 - the agent's parameters

    assert result.status is RolloutStatus.NO_REWARD
    assert refused == ["Rollout r has ended, so the reward 'late' comes too late"]
    assert {r.name: r.value for r in echo_store.rewards("r")} == {"early": 0.25}


async def test_a_thread_that_an_agent_leaves_running_rewards_nothing_while_the_rollout_is_judged(
    play_agent: PlayAgent, echo_store: Store
) -> None:
    judging, tried = threading.Event(), threading.Event()
    refused: list[str] = []

    def leftover(rollout: Rollout) -> None:
        judging.wait(20)
        try:
            rollout.reward(5.0, "late")
        except RewardError as error:
            refused.append(error.what)
        tried.set()

    def agent(task: Any, rollout: Rollout) -> None:
        del task
        ask(rollout)
        threading.Thread(target=leftover, args=(rollout,)).start()

    def reward(rollout: Rollout) -> float:
        judging.set()
        assert tried.wait(20)
        rollout.reward(0.25, "judged")
        return 1.0

    result = await play_agent(agent, reward)

    assert refused == ["Rollout r has ended, so the reward 'late' comes too late"]
    assert result.status is RolloutStatus.SUCCEEDED
    assert {r.name: r.value for r in echo_store.rewards("r")} == {"judged": 0.25, "reward": 1.0}
