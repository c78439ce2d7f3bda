"""An async agent that blocks the loop it shares is found and named, and the others are not to blame."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout
from spangrad.gateway import Gateway
from spangrad.rollouts import Judges, RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.rollouts._loop_watch import Blocking, LoopCall, LoopWatch
from spangrad.store import RolloutStatus, Store
from spangrad.transitions import FailureKind, FailurePolicies, FailurePolicy, Treatment

LINE = "release.wait(20)"


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was told to stop, and a loop that is asked for a turn, get a fifth of a second."""
    monkeypatch.setattr("spangrad.rollouts._lanes.GRACE", 0.2)
    monkeypatch.setattr("spangrad.rollouts._loop_thread._TURN", 0.2)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Frees what blocks; set at the end of the test, whose loops have then ended."""
    freed = threading.Event()
    yield freed
    freed.set()
    for thread in threading.enumerate():
        if thread.name == "spangrad-agents":
            thread.join(20)


async def ask(rollout: Rollout) -> None:
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "x"}])


def jobs(*kinds: str) -> list[RolloutJob]:
    return [RolloutJob(f"r{i}", 1, "g", Task("t", {"kind": kind}), "train", 1) for i, kind in enumerate(kinds)]


def line_of(function: Any) -> str:
    """Where the function has the line that blocks."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [number for number, line in enumerate(lines) if LINE in line]
    return f"{__file__}, line {first + offset}"


@pytest.mark.parametrize("within", ["the agent", "a task of the agent"])
async def test_the_agent_that_blocks_is_named_with_its_line_and_the_others_are_not_to_blame(
    echo_gateway: Gateway, echo_store: Store, caplog: pytest.LogCaptureFixture, release: threading.Event, within: str
) -> None:
    others: list[str] = []
    all_run = asyncio.Event()

    async def block() -> None:
        await all_run.wait()
        release.wait(20)

    async def agent(task: Any, rollout: Rollout) -> float:
        await ask(rollout)
        if rollout.attempt == 2:
            return 1.0
        if task["kind"] == "block":
            await (block() if within == "the agent" else asyncio.create_task(block()))
        others.append(rollout.id)
        if len(others) == 2:
            all_run.set()
        await asyncio.sleep(60)
        return 0.0

    failures = FailurePolicies(
        {
            FailureKind.TIMED_OUT: FailurePolicy(Treatment.PENALISE, reward=-1.0),
            FailureKind.INFRASTRUCTURE: FailurePolicy(Treatment.RETRY, attempts=2),
        }
    )
    runner = Runner(
        load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=3, timeout=3, failures=failures
    )
    with caplog.at_level(logging.WARNING, "spangrad.rollouts"), runner:
        results = await runner.run(jobs("block", "fine", "fine"))

    place = line_of(block)
    assert [(r.status, r.reward) for r in results] == [
        (RolloutStatus.TIMED_OUT, -1.0),
        (RolloutStatus.SUCCEEDED, 1.0),
        (RolloutStatus.SUCCEEDED, 1.0),
    ]
    assert results[0].error == f"The agent ran out of time, and blocked the event loop of all async agents ({place})"
    for name in ("r1", "r2"):
        first = echo_store.rollout(name, 1)
        assert first is not None
        assert first.status is RolloutStatus.INFRASTRUCTURE
        said = "The agent could not go on: the event loop of all async agents was blocked by the agent of rollout r0"
        assert first.error == f"{said} ({place})"
        assert not [reward for reward in echo_store.rewards(name) if reward.attempt == 1]
    (warning,) = [r.getMessage() for r in caplog.records if "blocked by" in r.getMessage()]
    assert f"the agent of rollout r0 ({place})" in warning
    assert "asyncio.to_thread" in warning
    assert runner.abandoned == 1


async def test_those_whose_time_is_not_over_when_the_loop_is_left_are_told(
    echo_gateway: Gateway, echo_store: Store, release: threading.Event
) -> None:
    begun = asyncio.Event()

    async def agent(task: Any, rollout: Rollout) -> float:
        await ask(rollout)
        if task["kind"] == "short":
            await asyncio.sleep(1.5)
        if task["kind"] == "later":
            begun.set()
            await asyncio.sleep(60)
        if task["kind"] == "block":
            await begun.wait()
            release.wait(20)
        return 1.0

    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=2, timeout=4)
    with runner:
        results = await runner.run(jobs("block", "short", "later"))

    # The third began 1.5 seconds after the first, and the loop is left half a second after the first one's time is over.
    assert [r.status for r in results] == [
        RolloutStatus.TIMED_OUT,
        RolloutStatus.SUCCEEDED,
        RolloutStatus.INFRASTRUCTURE,
    ]
    record = results[2].record
    assert record.finished_at is not None
    assert record.finished_at - record.started_at < 4


async def test_a_reward_function_that_is_kept_from_going_on_leaves_broken_infrastructure(
    echo_gateway: Gateway, echo_store: Store, release: threading.Event
) -> None:
    judging = asyncio.Event()

    async def agent(task: Any, rollout: Rollout) -> None:
        await ask(rollout)
        if task["kind"] == "block":
            await judging.wait()
            release.wait(20)

    async def reward() -> float:
        judging.set()
        await asyncio.sleep(60)
        return 1.0

    judges = Judges(load_reward(reward, Path()))
    with Runner(load_agent(agent, Path()), judges, echo_gateway, echo_store, concurrency=2, timeout=3) as runner:
        results: list[RolloutResult] = await runner.run(jobs("block", "fine"))

    assert [r.status for r in results] == [RolloutStatus.TIMED_OUT, RolloutStatus.INFRASTRUCTURE]
    assert "was blocked by the agent of rollout r0" in results[1].error


def test_a_call_is_a_victim_when_others_cost_it_a_tenth_of_its_time_and_more_than_it_cost_them() -> None:
    one, two = Blocking("the agent of rollout a", "a.py, line 1"), Blocking("the agent of rollout b", "")

    assert LoopCall("c", lost={one: 0.4, two: 0.7}).victim_of(10.0) == two
    assert LoopCall("c", lost={one: 0.4, two: 0.7}).victim_of(12.0) is None
    assert LoopCall("c", lost={one: 2.0}, cost={two: 2.5}).victim_of(10.0) is None
    assert LoopCall("c", lost={one: 2.0}, cost={two: 2.5}).culprit(10.0) == two
    assert LoopCall("c", cost={two: 0.5}).culprit(10.0) is None
    assert [str(one), str(two)] == ["the agent of rollout a (a.py, line 1)", "the agent of rollout b"]


def test_many_tasks_that_each_take_a_little_are_nobodys_fault() -> None:
    """Forty clients made at once keep a loop from taking turns for most of a second, each for a few milliseconds."""
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop)

    async def a_little() -> None:
        for _ in range(2):
            time.sleep(0.02)  # noqa: ASYNC251 - what blocks is what this is about
            await asyncio.sleep(0)

    def calls() -> list[LoopCall]:
        return [watch.begin_call(f"Agent {n}", lambda: loop.create_task(a_little()))[0] for n in range(40)]

    async def together() -> list[LoopCall]:
        made = calls()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        return made

    try:
        watch.watch(threading.get_ident())
        made = loop.run_until_complete(together())
    finally:
        watch.end()
        loop.close()
    assert len(made) == 40
    assert not [call for call in made if call.cost or call.lost]
