"""Rollouts judged by everything that gives rewards: what is recorded, and what becomes of a rollout that a judge fails."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout
from spangrad.gateway import Gateway
from spangrad.rollouts import Judges, RolloutJob, RolloutResult, Runner, Task, load_agent, load_command, load_reward
from spangrad.rollouts.judging import Check, Evaluator, GroupJudge, JudgeSettings
from spangrad.store import RolloutStatus, Store
from spangrad.testing import ScriptedEndpoint
from spangrad.transitions import RewardWeights

Play = Callable[..., Any]
Serve = Callable[[Callable[[Mapping[str, Any]], str]], JudgeSettings]


async def agent(task: Any, rollout: Rollout) -> Any:
    """Answers with the task's text; "fail" fails, "given" is rewarded on the way."""
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
        messages: Any = [{"role": "user", "content": task["text"]}]
        answer = (await client.chat.completions.create(model="echo", messages=messages)).choices[0].message.content
    if answer == "fail":
        raise ValueError(answer)
    if answer == "given":
        rollout.reward(0.5, "given")
    return answer


@pytest.fixture
def play(echo_gateway: Gateway, echo_store: Store) -> Play:
    """Runs one group of rollouts, one per text."""

    async def run(judges: Judges, *texts: str, **settings: Any) -> list[RolloutResult]:
        usual: dict[str, Any] = {"concurrency": 8, "timeout": 30}
        runner = Runner(load_agent(agent, Path()), judges, echo_gateway, echo_store, **usual | settings)
        jobs = [RolloutJob(f"r{i}", 1, "g", Task("t", {"text": text}), "train", 1) for i, text in enumerate(texts)]
        results = await runner.run(jobs)
        assert [result.record for result in results] == [echo_store.rollout(f"r{i}") for i in range(len(texts))]
        assert [list(result.rewards) for result in results] == [echo_store.rewards(f"r{i}") for i in range(len(texts))]
        return results

    return run


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as running:

        def make(reply: Callable[[Mapping[str, Any]], str]) -> JudgeSettings:
            endpoint = running.enter_context(ScriptedEndpoint(reply, token_ids=False))
            return JudgeSettings(endpoint.base_url, "judge", "", "It is good.")

        yield make


def told(result: RolloutResult) -> list[tuple[str, float, str]]:
    return [(reward.name, reward.value, reward.source) for reward in result.rewards]


async def test_a_reward_function_gives_rewards_by_name_that_add_to_those_given_on_the_way(play: Play) -> None:
    def reward(output: Any) -> dict[str, float]:
        return {"correct": 1.0, "length": len(output)}

    weights = RewardWeights({"correct": 1.0, "length": 0.1, "given": 2.0})
    (result,) = await play(Judges(load_reward(reward, Path()), weights=weights), "given")
    assert told(result) == [
        ("given", 0.5, "scope"),
        ("correct", 1.0, "reward_function"),
        ("length", 5.0, "reward_function"),
    ]
    assert result.reward == pytest.approx(1.0 + 0.1 * 5 + 2.0 * 0.5)
    assert result.status is RolloutStatus.SUCCEEDED


async def test_a_reward_without_a_weight_fails_the_rollout_and_is_on_record(play: Play) -> None:
    judges = Judges(load_reward(lambda: {"correct": 1.0, "froM": 0.5}, Path()), weights=RewardWeights({"correct": 1.0}))
    (result,) = await play(judges, "x")
    assert result.status is RolloutStatus.NO_REWARD
    assert "rewards.weights has no weight for the reward 'froM'" in result.error
    assert [name for name, _, _ in told(result)] == ["correct", "froM"]


async def test_a_reward_given_on_the_way_needs_a_weight_too(play: Play) -> None:
    judges = Judges(load_reward(lambda: 1.0, Path()), weights=RewardWeights({"reward": 1.0}))
    fine, lacking = await play(judges, "x", "given")
    assert (fine.status, lacking.status) == (RolloutStatus.SUCCEEDED, RolloutStatus.NO_REWARD)
    assert "'given'" in lacking.error


async def test_all_judges_together(play: Play, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    bad = asked['output'] == 'bad'\n"
        "    print(json.dumps({'error': 'cannot read it'} if bad else {'length': len(asked['output'])}), flush=True)\n"
    )
    (tmp_path / "check.py").write_text(
        "import os, pathlib, sys\nsys.exit(pathlib.Path(os.environ['SPANGRAD_OUTPUT_FILE']).read_text() != 'right')\n"
    )
    evaluator = Evaluator(load_command([sys.executable, "judge.py"], tmp_path))
    check = Check(load_command([sys.executable, "check.py"], tmp_path))
    judges = Judges(load_reward(lambda: 0.25, Path()), (evaluator, check))
    right, wrong, bad = await play(judges, "right", "wrong!", "bad")
    assert told(right) == [("reward", 0.25, "reward_function"), ("length", 5.0, "evaluator"), ("check", 1.0, "check")]
    assert told(wrong) == [("reward", 0.25, "reward_function"), ("length", 6.0, "evaluator"), ("check", 0.0, "check")]
    assert (bad.status, told(bad)) == (RolloutStatus.NO_REWARD, [])
    assert "says: cannot read it" in bad.error


async def test_what_the_agent_returned_is_no_reward_where_somebody_judges_it(play: Play, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("")
    (result,) = await play(Judges(sources=(Check(load_command([sys.executable, "check.py"], tmp_path)),)), "7")
    assert told(result) == [("check", 1.0, "check")]


async def test_a_group_is_judged_when_its_last_rollout_has_ended_even_one_at_a_time(play: Play, serve: Serve) -> None:
    questions: list[str] = []

    def reply(body: Mapping[str, Any]) -> str:
        questions.append(body["messages"][0]["content"])
        return "Scores: 0.25, 0.75"

    judges = Judges(group=GroupJudge(serve(reply)))
    first, failed, last = await play(judges, "first", "fail", "last", concurrency=1)
    assert [r.status for r in (first, failed, last)] == [
        RolloutStatus.SUCCEEDED,
        RolloutStatus.FAILED,
        RolloutStatus.SUCCEEDED,
    ]
    assert (told(first), told(failed), told(last)) == ([("judge", 0.25, "judge")], [], [("judge", 0.75, "judge")])
    assert first.record.finished_at is not None
    (question,) = questions
    assert "Answer 1:\nfirst" in question
    assert "Answer 2:\nlast" in question


async def test_a_group_whose_judge_says_nothing_usable_has_no_reward_and_the_reply_is_shown(
    play: Play, serve: Serve
) -> None:
    results: Sequence[RolloutResult] = await play(Judges(group=GroupJudge(serve(lambda _: "All good!"))), "a", "b")
    assert [result.status for result in results] == [RolloutStatus.NO_REWARD] * 2
    assert all("it said: 'All good!'" in result.error for result in results)


async def test_rollouts_that_wait_for_their_judge_are_lost_when_the_run_is_interrupted(
    play: Play, serve: Serve, echo_store: Store
) -> None:
    asked, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def reply(_: Mapping[str, Any]) -> str:
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(timeout=30)
        return "Scores: 1, 1"

    running = asyncio.create_task(play(Judges(group=GroupJudge(serve(reply))), "a", "b"))
    try:
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    finally:
        go_on.set()
    records = [echo_store.rollout(f"r{i}") for i in range(2)]
    assert [record and record.status for record in records] == [RolloutStatus.LOST] * 2


async def test_a_rollout_that_waits_for_the_others_of_its_group_is_lost_when_the_run_is_interrupted(
    play: Play, serve: Serve, echo_store: Store
) -> None:
    judges = Judges(group=GroupJudge(serve(lambda _: "Scores: 1, 1")))
    running = asyncio.create_task(play(judges, "soon", "wait"))  # "wait" is answered after a minute
    while (record := echo_store.rollout("r0")) is None or not record.output:
        await asyncio.to_thread(echo_store.counts)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    records = [echo_store.rollout(f"r{i}") for i in range(2)]
    assert [record and record.status for record in records] == [RolloutStatus.LOST] * 2
