"""Telling an agent that fails from one whose surroundings do, trying again, and what comes too late of an attempt that was given up."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from spangrad import InfrastructureError, semconv
from spangrad.capture import Rollout, WorkRecorder
from spangrad.errors import RewardError
from spangrad.gateway import EngineDelta, EngineError, EngineRequest, Gateway, Route
from spangrad.rollouts import Judges, Overlong, RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store, open_store
from spangrad.transitions import (
    CallStatus,
    FailureKind,
    FailurePolicies,
    FailurePolicy,
    Fate,
    Reason,
    Treatment,
    extract,
)

PlayAgent = Callable[..., Awaitable[RolloutResult]]


def ask(rollout: Rollout, text: str = "x", model: str = "echo") -> None:
    with openai.OpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])


class Moody:
    """An engine that answers "ok" with a token, "nothing" without any, and fails with the status that the message says."""

    name = "moody"

    async def chat(self, request: EngineRequest) -> AsyncIterator[EngineDelta]:
        said = str(request.messages[-1]["content"])
        if said.isdecimal():
            raise EngineError("out of order", status=int(said))
        ids = (7,) if said == "ok" else ()
        yield EngineDelta(
            text="ok" if ids else "",
            prompt_ids=(1,),
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            policy_version=0,
            finish_reason="stop",
        )

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def moody(tmp_path: Path) -> Iterator[Callable[..., Awaitable[RolloutResult]]]:
    """Plays an agent that says these messages, and goes on or ends as told."""
    store = open_store(tmp_path / "moody.db")
    engine: Any = Moody()
    with Gateway(store, [Route("moody", engine, "policy")]) as gateway:

        async def play(messages: list[str], ending: object, **settings: Any) -> RolloutResult:
            def agent(task: Any, rollout: Rollout) -> object:
                del task
                for message in messages:
                    try:
                        ask(rollout, message, "moody")
                    except openai.APIStatusError:
                        continue
                if isinstance(ending, Exception):
                    raise ending
                return ending

            runner = Runner(load_agent(agent, Path()), None, gateway, store, concurrency=1, timeout=20, **settings)
            (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {}), "train", 1)])
            return result

        yield play
    store.close()


@pytest.mark.parametrize(
    ("messages", "ending", "status"),
    [
        (["ok", "503"], ValueError("x"), RolloutStatus.INFRASTRUCTURE),
        (["503", "ok"], ValueError("x"), RolloutStatus.FAILED),  # the model had answered again
        (["ok", "429"], ValueError("x"), RolloutStatus.FAILED),  # the agent's own doing, by its status
        (["ok", "500"], 1.0, RolloutStatus.SUCCEEDED),  # it coped
        (["503"], 1.0, RolloutStatus.INFRASTRUCTURE),  # it ended by itself, but with nothing to train on
        (["ok", "503"], None, RolloutStatus.NO_REWARD),
        (["nothing"], 1.0, RolloutStatus.NO_CALL),
        (["400"], 1.0, RolloutStatus.NO_CALL),
        (["nothing", "ok"], 1.0, RolloutStatus.SUCCEEDED),
        ([], 1.0, RolloutStatus.NO_CALL),
        (["ok"], InfrastructureError("the sandbox is gone"), RolloutStatus.INFRASTRUCTURE),
    ],
)
async def test_whether_the_agent_or_its_surroundings_broke(
    moody: Callable[..., Awaitable[RolloutResult]], messages: list[str], ending: object, status: RolloutStatus
) -> None:
    result = await moody(messages, ending)

    assert result.status is status, result.error
    if status is RolloutStatus.INFRASTRUCTURE:
        assert "out of order" in result.error or "the sandbox is gone" in result.error


async def test_a_command_says_that_something_else_broke_by_the_status_of_a_temporary_failure(
    play_agent: PlayAgent,
) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the database is down') if 0 else sys.exit(75)"]

    result = await play_agent(command)

    assert result.status is RolloutStatus.INFRASTRUCTURE
    assert "exited with status 75" in result.error


async def test_attempts_are_counted_for_each_kind_by_the_kind_an_attempt_ended_with(
    play_agent: PlayAgent, echo_store: Store
) -> None:
    def agent(task: Any, rollout: Rollout) -> float:
        del task
        ask(rollout)
        if rollout.attempt < 3:
            raise InfrastructureError("not yet")
        raise ValueError

    policies = FailurePolicies(
        {
            FailureKind.INFRASTRUCTURE: FailurePolicy(Treatment.RETRY, attempts=5),
            FailureKind.FAILED: FailurePolicy(Treatment.PENALISE, reward=-2.0),
        }
    )
    result = await play_agent(agent, failures=policies)

    assert (result.status, result.record.attempt, result.reward) == (RolloutStatus.FAILED, 3, -2.0)
    assert [(r.attempt, r.name, r.value, r.source) for r in echo_store.rewards("r")] == [
        (3, "failure", -2.0, "failure policy")
    ]


async def test_the_length_of_a_rollout_is_rewarded_beside_its_outcome_but_not_instead(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    def agent(task: Any, rollout: Rollout) -> float | None:
        ask(rollout, "four")
        ask(rollout, "four")
        return 1.0 if task["rewarded"] else None

    jobs = [
        RolloutJob(f"r{number}", 1, "g", Task("t", {"rewarded": rewarded}), phase, 1)
        for number, (rewarded, phase) in enumerate([(True, "train"), (False, "train"), (True, "evaluate")])
    ]
    judges = Judges(overlong=Overlong(max_tokens=12, cache=4))
    runner = Runner(load_agent(agent, Path()), judges, echo_gateway, echo_store, concurrency=1, timeout=20)

    rewarded, unrewarded, measured = await runner.run(jobs)

    # Two answers of four bytes and the token that ends a turn: 10 tokens, 2 of the cache's 4 over 8.
    assert {(r.name, r.value, r.source) for r in rewarded.rewards} == {
        ("reward", 1.0, "return_value"),
        ("overlong", -0.5, "length"),
    }
    assert (unrewarded.status, unrewarded.rewards) == (RolloutStatus.NO_REWARD, ())
    assert [r.name for r in measured.rewards] == ["reward"]


async def test_what_a_lost_attempt_posts_when_it_wakes_up_is_quarantined_and_counted(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    """The first attempt's thread sleeps beyond its time limit; it wakes up in the middle of the second attempt."""
    second_runs, late_is_done = threading.Event(), threading.Event()
    refused: list[str] = []

    def wake_up(rollout: Rollout) -> None:
        try:
            ask(rollout, "late")
        except openai.ConflictError as error:
            refused.append(str(error.code))
        try:
            rollout.reward(99.0)
        except RewardError as error:
            refused.append(error.what)
        recorder = WorkRecorder("test.late")
        recorder.begin("late", "late tool", operation=semconv.TOOL_OPERATION, attributes={semconv.TOOL_NAME: "late"})
        recorder.end("late")
        span = {
            "traceId": "a" * 32,
            "spanId": "b" * 16,
            "name": "posted",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
        }
        httpx.post(
            f"{echo_gateway.base_url}/v1/traces",
            headers={"authorization": f"Bearer {rollout.api_key}"},
            json={"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]},
        ).raise_for_status()
        url = f"{echo_gateway.base_url}/rollouts/r/attempts/1/rewards"
        key = {"authorization": f"Bearer {echo_gateway.evaluator_key}"}
        refused.append(httpx.post(url, headers=key, json={"value": 98.0}).json()["error"]["code"])

    def agent(task: Any, rollout: Rollout) -> float:
        del task
        ask(rollout, "in time")
        if rollout.attempt == 1:
            assert second_runs.wait(30)
            wake_up(rollout)
            late_is_done.set()
            return 97.0
        second_runs.set()
        assert late_is_done.wait(30)
        return 1.0

    twice = FailurePolicies({FailureKind.TIMED_OUT: FailurePolicy(Treatment.RETRY, attempts=2)})
    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=1, timeout=2, failures=twice)
    with runner:
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {}), "train", 1)])
        await asyncio.to_thread(late_is_done.wait, 30)

    assert (result.status, result.record.attempt, result.reward) == (RolloutStatus.SUCCEEDED, 2, 1.0)
    assert refused == ["rollout_closed", "Rollout r has ended, so the reward 'reward' comes too late", "rollout_closed"]
    assert [reward.value for reward in echo_store.rewards("r")] == [1.0]
    assert runner.late == {"calls": 1, "spans": 2, "rewards": 2}
    spans = {span.name: span.attempt for span in echo_store.spans("r")}
    assert spans == {"execute_tool late tool": 1, "posted": 1}
    assert [(call.attempt, call.status) for call in echo_store.calls("r")] == [
        (1, CallStatus.OK),
        (2, CallStatus.OK),
        (1, CallStatus.LATE),
    ]
    extraction = extract(result.record, echo_store.calls("r"), echo_store.rewards("r"), echo_store.spans("r"))
    (transition,) = extraction.transitions
    assert (transition.attempt, transition.rollout_reward) == (2, 1.0)
    assert [(entry.attempt, entry.fate, entry.reason) for entry in extraction.entries] == [
        (1, Fate.DROPPED, Reason.OTHER_ATTEMPT)
    ] * 2
