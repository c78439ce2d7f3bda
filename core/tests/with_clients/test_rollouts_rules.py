"""Rules applied to rollouts that really ran: agents in this process and in one of their own, functions, and what fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad import semconv
from spangrad.capture import Rollout, WorkRecorder
from spangrad.gateway import Gateway
from spangrad.rollouts import Agent, Judges, RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.rollouts.judging import GroupJudge, JudgeSettings
from spangrad.rollouts.rules import Rule
from spangrad.spans import Span
from spangrad.store import RolloutStatus, Store
from spangrad.testing import ScriptedEndpoint
from spangrad.transitions import Call, RewardWeights

RECORDER = WorkRecorder("test.rules")
ERROR = Rule("tool_error", "tool_error", -0.5)
PROGRAM = """\
import openai

from spangrad import semconv
from spangrad.capture import WorkRecorder

with openai.OpenAI() as client:
    client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "x"}])
recorder = WorkRecorder("test.program")
recorder.begin("tool", "lookup", operation=semconv.TOOL_OPERATION, attributes={semconv.TOOL_NAME: "lookup"})
recorder.end("tool", error=ValueError("no such thing"))
print("done")
"""


async def agent(task: Any, rollout: Rollout) -> str:
    """Calls the model twice; a tool fails after the first call."""
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
        for text in ("first", "second"):
            await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])
            if text == "first":
                key = object()
                attributes = {semconv.TOOL_NAME: "lookup"}
                RECORDER.begin(key, "lookup", operation=semconv.TOOL_OPERATION, attributes=attributes)
                RECORDER.end(key, error=ValueError("no such thing"))
    return str(task["text"])


@pytest.fixture
def play(echo_gateway: Gateway, echo_store: Store) -> Callable[..., Any]:
    """Runs an agent once with these judges."""

    async def run(judges: Judges, program: Agent | None = None, phase: str = "train") -> RolloutResult:
        runner = Runner(
            program or load_agent(agent, Path()), judges, echo_gateway, echo_store, concurrency=2, timeout=20
        )
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {"text": "x"}), phase, 1)])
        assert echo_store.rollout("r") == result.record
        assert echo_store.rewards("r") == list(result.rewards)
        return result

    return run


def judged(*rules: Rule, **options: Any) -> Judges:
    return Judges(load_reward(lambda: 1.0, Path()), rules=rules, **options)


def of_calls(result: RolloutResult, store: Store) -> list[tuple[str, float, str, int]]:
    order = [call.call_id for call in store.calls("r")]
    return [(r.name, r.value, r.source, order.index(r.call_id)) for r in result.rewards if r.call_id is not None]


async def test_the_call_before_the_failed_tool_is_rewarded(play: Callable[..., Any], echo_store: Store) -> None:
    result = await play(judged(ERROR))
    assert of_calls(result, echo_store) == [("tool_error", -0.5, "rule tool_error", 0)]
    assert (result.status, result.reward, result.unlinked) == (RolloutStatus.SUCCEEDED, 0.5, 0)


async def test_the_spans_of_a_command_are_there_when_rules_look(play: Callable[..., Any], echo_store: Store) -> None:
    result = await play(judged(ERROR), load_agent([sys.executable, "-c", PROGRAM], Path()))
    assert of_calls(result, echo_store) == [("tool_error", -0.5, "rule tool_error", 0)], result.error


async def test_while_measuring_rules_give_nothing(play: Callable[..., Any], echo_store: Store) -> None:
    assert of_calls(await play(judged(ERROR), phase="evaluate"), echo_store) == []


async def test_a_judge_that_compares_adds_to_what_rules_gave(play: Callable[..., Any], echo_store: Store) -> None:
    with ScriptedEndpoint(lambda _: "Score: 1", token_ids=False) as endpoint:
        judge = GroupJudge(JudgeSettings(endpoint.base_url, "judge", "", "It is good."))
        result = await play(Judges(group=judge, rules=[ERROR]))
    assert of_calls(result, echo_store) == [("tool_error", -0.5, "rule tool_error", 0)]
    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 0.5)


async def test_a_judge_that_fails_leaves_what_rules_gave_on_record(play: Callable[..., Any], echo_store: Store) -> None:
    result = await play(Judges(load_reward(lambda: None, Path()), rules=[ERROR]))
    assert result.status is RolloutStatus.NO_REWARD
    assert of_calls(result, echo_store) == [("tool_error", -0.5, "rule tool_error", 0)]


async def test_a_rules_reward_without_a_weight_fails_the_rollout(play: Callable[..., Any]) -> None:
    result = await play(judged(ERROR, weights=RewardWeights({"reward": 1.0})))
    assert result.status is RolloutStatus.NO_REWARD
    assert "no weight for the reward 'tool_error'" in result.error


async def test_a_function_gets_calls_and_spans_whether_it_is_async_or_not(
    play: Callable[..., Any], echo_store: Store
) -> None:
    def plain(calls: Sequence[Call], spans: Sequence[Span]) -> Mapping[str, float]:
        assert [span.status for span in spans if span.attributes.get(semconv.TOOL_NAME) == "lookup"] == ["error"]
        return {calls[1].call_id: 0.25}

    async def waiting(calls: Sequence[Call], spans: Sequence[Span]) -> Mapping[str, float]:
        await asyncio.sleep(0)
        return {calls[0].call_id: float(len(spans) > 0)}

    rules = (
        Rule("plain", "function", function=plain, function_name="m:plain"),
        Rule("waiting", "function", function=waiting, function_name="m:waiting", asynchronous=True),
    )
    assert of_calls(await play(judged(*rules)), echo_store) == [
        ("plain", 0.25, "rule plain", 1),
        ("waiting", 1.0, "rule waiting", 0),
    ]


async def test_a_function_that_does_not_end_in_time_is_named(echo_gateway: Gateway, echo_store: Store) -> None:
    async def never(calls: Sequence[Call], spans: Sequence[Span]) -> Mapping[str, float]:
        await asyncio.Event().wait()
        return {calls[0].call_id: float(len(spans))}

    rule = Rule("mine", "function", function=never, function_name="m:never", asynchronous=True)
    runner = Runner(load_agent(agent, Path()), judged(rule), echo_gateway, echo_store, concurrency=1, timeout=2)
    (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {"text": "x"}), "train", 1)])
    assert result.status is RolloutStatus.NO_REWARD
    assert result.error == "The function 'm:never' of the rule 'mine' was still running after 2 seconds"
    assert result.rewards == ()
