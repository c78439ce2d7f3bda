"""Whatever one agent does ends its own rollout, with a clear reason; the others go on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store
from spangrad.transitions import CallStatus, FailureKind, FailurePolicies, FailurePolicy, Treatment

PlayAgent = Callable[..., Awaitable[RolloutResult]]
FIVE_TRIES = FailurePolicies({FailureKind.FAILED: FailurePolicy(Treatment.RETRY, attempts=5)})


async def ask_async(rollout: Rollout, text: str = "x") -> None:
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])


def ask(rollout: Rollout, text: str = "x") -> None:
    with openai.OpenAI(base_url=rollout.base_url, api_key=rollout.api_key, max_retries=0) as client:
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])


def returning(output: object) -> Callable[..., Any]:
    async def agent(task: Any, rollout: Rollout) -> object:
        del task
        await ask_async(rollout)
        return output

    return agent


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_agent_that_raises_has_failed_with_what_and_where(
    play_agent: PlayAgent, *, asynchronous: bool
) -> None:
    async def agent_async(task: Any, rollout: Rollout) -> None:
        await ask_async(rollout)
        raise ValueError(f"cannot do {task['text']}")

    def agent(task: Any, rollout: Rollout) -> None:
        ask(rollout)
        raise ValueError(f"cannot do {task['text']}")

    result = await play_agent(agent_async if asynchronous else agent)
    assert result.status is RolloutStatus.FAILED
    assert result.error.startswith(f"The agent raised ValueError: cannot do x ({__file__}, line ")
    assert result.reward is None


@pytest.mark.parametrize(
    ("module", "path"),
    [("spangrad_other._call", "src/_call.py"), ("framework", "elsewhere/site-packages/framework.py")],
    ids=["an integration run from a checkout", "a library of another environment"],
)
async def test_a_failure_names_the_users_own_line_and_shows_no_traceback_of_a_library(
    play_agent: PlayAgent, tmp_path: Path, module: str, path: str
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("def fail():\n    raise ValueError('no\\nTraceback (most recent call last):\\n ...')\n")
    spec = spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    library = module_from_spec(spec)
    spec.loader.exec_module(library)

    def agent(_: Any, rollout: Rollout) -> None:
        ask(rollout)
        library.fail()

    result = await play_agent(agent)
    assert result.error == f"The agent raised ValueError: no ({__file__}, line {agent.__code__.co_firstlineno + 2})"


@pytest.mark.parametrize(
    "error", [SystemExit(3), StopIteration("s"), asyncio.CancelledError(), TimeoutError(), KeyError("k")]
)
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_odd_exceptions_of_an_agent_are_failures_too(
    play_agent: PlayAgent, error: BaseException, *, asynchronous: bool
) -> None:
    async def agent_async(task: Any) -> None:
        del task
        raise error

    def agent(task: Any) -> None:
        del task
        raise error

    result = await play_agent(agent_async if asynchronous else agent)
    assert result.status is RolloutStatus.FAILED
    assert ("sys.exit(3)" if isinstance(error, SystemExit) else type(error).__name__) in result.error


async def test_an_agent_whose_model_is_not_routed_has_failed_and_is_told_the_names(
    play_agent: PlayAgent, echo_store: Store
) -> None:
    async def agent(task: Any, rollout: Rollout) -> None:
        del task
        async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
            await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])

    result = await play_agent(agent)
    assert result.status is RolloutStatus.FAILED
    assert "gpt-9" in result.error
    assert "echo" in result.error
    assert [call.status for call in echo_store.calls("r")] == [CallStatus.ERROR]


async def test_a_plain_agent_that_returns_a_coroutine_has_it_awaited(play_agent: PlayAgent) -> None:
    result = await play_agent(lambda task, rollout: returning(3)(task, rollout))  # noqa: PLW0108 - a plain function
    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 3.0)


async def test_sys_exit_in_a_task_of_one_agent_does_not_end_the_loop_of_all(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    async def leave() -> None:
        sys.exit(1)

    async def agent(task: Any, rollout: Rollout) -> float:
        if task["text"] == "leave":
            await asyncio.gather(leave(), return_exceptions=True)
        await ask_async(rollout)
        return 1.0

    jobs = [RolloutJob(f"r{i}", 1, "g", Task("t", {"text": text}), "train", 1) for i, text in enumerate(["leave", "x"])]
    results = await Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=1, timeout=5).run(
        jobs
    )
    assert [result.status for result in results] == [RolloutStatus.SUCCEEDED] * 2


async def test_an_agent_that_makes_no_call_is_no_success(play_agent: PlayAgent) -> None:
    result = await play_agent(lambda task: 1.0)  # noqa: ARG005 - an agent takes a task
    assert result.status is RolloutStatus.NO_CALL
    assert "without calling the model" in result.error


@pytest.mark.parametrize(
    ("output", "shown"),
    [(None, "None"), (float("nan"), "nan"), ("very good", "str 'very good'"), (float("inf"), "inf")],
)
async def test_an_output_that_is_no_reward_is_named(play_agent: PlayAgent, output: object, shown: str) -> None:
    result = await play_agent(returning(output))
    assert result.status is RolloutStatus.NO_REWARD
    assert f"what the agent returned is {shown}" in result.error
    assert result.rewards == ()


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "None"), (float("nan"), "nan"), ("1", "str '1'"), ({}, "an empty mapping")]
)
async def test_a_reward_function_that_returns_no_number_is_named(
    play_agent: PlayAgent, value: object, shown: str
) -> None:
    def judge(output: Any) -> object:
        del output
        return value

    result = await play_agent(returning("answer"), judge)
    assert result.status is RolloutStatus.NO_REWARD
    assert "judge" in result.error
    assert f"returned is {shown}" in result.error
    assert result.output == "answer"


async def test_a_reward_function_that_raises_leaves_the_rollout_without_reward(play_agent: PlayAgent) -> None:
    def judge(output: Any) -> float:
        return float(output["missing"])

    result = await play_agent(returning({"x": 1}), judge)
    assert result.status is RolloutStatus.NO_REWARD
    assert "raised KeyError: 'missing'" in result.error
    assert json.loads(result.record.output) == {"x": 1}


async def test_a_reward_function_that_hangs_leaves_the_rollout_without_reward(play_agent: PlayAgent) -> None:
    async def judge(output: Any) -> float:
        await asyncio.sleep(60)
        return float(output)

    result = await play_agent(returning(1), judge, timeout=2)
    assert result.status is RolloutStatus.NO_REWARD
    assert "still running after 2 seconds" in result.error


async def test_rewards_given_along_the_way_are_enough_and_add_up(play_agent: PlayAgent, echo_store: Store) -> None:
    async def agent(task: Any, rollout: Rollout) -> str:
        del task
        await ask_async(rollout)
        rollout.reward(True, "right")
        rollout.reward(0.25, "format")
        return "done"

    result = await play_agent(agent)
    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.25)
    assert [(r.name, r.value, r.source) for r in echo_store.rewards("r")] == [
        ("right", 1.0, "scope"),
        ("format", 0.25, "scope"),
    ]


async def test_a_returned_number_is_the_reward_unless_the_rollout_was_rewarded(play_agent: PlayAgent) -> None:
    async def agent(task: Any, rollout: Rollout) -> float:
        del task
        await ask_async(rollout)
        rollout.reward(0.5)
        return 7.0

    assert (await play_agent(agent)).reward == 0.5


async def test_an_async_reward_function_may_reward_through_the_rollout(play_agent: PlayAgent) -> None:
    async def judge(task: Any, output: Any, rollout: Rollout) -> None:
        await asyncio.sleep(0)
        rollout.reward(float(output) + len(task["text"]), "judged")

    result = await play_agent(returning(2), judge)
    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 3.0)


async def test_failures_leave_their_siblings_alone(echo_gateway: Gateway, echo_store: Store) -> None:
    async def agent(task: Any, rollout: Rollout) -> float | None:
        await ask_async(rollout)
        match task["text"]:
            case "raise":
                raise RuntimeError
            case "hang":
                await asyncio.sleep(60)
            case "nothing":
                return None
        return 1.0

    texts = ["fine", "raise", "hang", "nothing", "fine"]
    jobs = [RolloutJob(f"r{i}", 1, "g", Task("t", {"text": text}), "train", 1) for i, text in enumerate(texts)]
    seen: list[str] = []
    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=5, timeout=4)
    results = await runner.run(jobs, on_result=lambda result: seen.append(result.job.rollout_id))
    s = RolloutStatus
    assert [r.status for r in results] == [s.SUCCEEDED, s.FAILED, s.TIMED_OUT, s.NO_REWARD, s.SUCCEEDED]
    assert sorted(seen) == ["r0", "r1", "r2", "r3", "r4"]
    assert {r.rollout_id: r.status for r in echo_store.rollouts()} == {r.record.rollout_id: r.status for r in results}


async def test_a_failed_rollout_is_tried_again_under_the_next_attempt(play_agent: PlayAgent, echo_store: Store) -> None:
    async def agent(task: Any, rollout: Rollout) -> float:
        del task
        await ask_async(rollout)
        if rollout.attempt < 3:
            raise RuntimeError("not yet")
        return 1.0

    result = await play_agent(agent, failures=FIVE_TRIES)
    assert (result.status, result.record.attempt) == (RolloutStatus.SUCCEEDED, 3)
    assert [(r.attempt, r.status) for r in echo_store.rollouts()] == [
        (1, RolloutStatus.FAILED),
        (2, RolloutStatus.FAILED),
        (3, RolloutStatus.SUCCEEDED),
    ]
    assert [len(echo_store.calls("r", attempt)) for attempt in (1, 2, 3)] == [1, 1, 1]
