"""The agent of examples/math_autogen in rollouts, through a real gateway, with a model that follows a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conftest import EXAMPLES

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.store import RolloutStatus, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.training._warm_start import demonstrated
from spangrad.transitions import Call, continuation_figures

EXAMPLE = ("math_autogen", "agent", "calculator", "tasks", "teacher")
FOLDER = EXAMPLES / "math_autogen"
FORM = ByteChatFormat()
ROOM = 300
"""Tokens of an answer; here a token is a byte."""


def said(message: Mapping[str, Any]) -> str:
    """A message as a model writes it."""
    return FORM.decode(FORM.render_answer(message), skip_special=True)


Played = tuple[RolloutResult, list[Call]]
Play = Callable[[str, Mapping[str, Any], Sequence[str]], Awaitable[Played]]


@pytest.fixture
def play(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Runs one of the example's agents on a task through a real gateway; its model says one answer after the other."""
    for name in ("MAX_TOKENS", "CALC_X_MAX_TOKENS"):
        monkeypatch.setattr(example.agent, name, ROOM)
    turns: list[str] = []

    def answer(_: ScriptedPrompt) -> str:
        return turns.pop(0)

    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(answer), FORM, "scripted")
    with (
        Gateway(store, [Route("policy", engine, "policy")]) as gateway,
        load_plugins({"SPANGRAD_PLUGINS": "autogen"}).attached(),
    ):

        async def run(name: str, task: Mapping[str, Any], answers: Sequence[str]) -> Played:
            turns[:] = answers
            agent = load_agent(leaving_nothing_open(example.agent, name), FOLDER)
            reward = load_reward(example.agent.reward, FOLDER)
            runner = Runner(agent, reward, gateway, store, concurrency=1, timeout=60)
            (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", dict(task)), "train", 1)])
            return result, store.calls("r")

        yield run
    store.close()


def leaving_nothing_open(agent: Any, run: str) -> Callable[[Mapping[str, Any]], Awaitable[str | None]]:
    """The agent's function, which closes on its own event loop what the module shares between rollouts."""

    async def solve(task: Mapping[str, Any]) -> str | None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(agent.model_client(ROOM).close)
            if run == "solve_with_mcp":
                await stack.enter_async_context(agent.shared_mcp_calculator())
            return cast("str | None", await getattr(agent, run)(task))

    return solve


def taught(conversation: Mapping[str, Any]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Prompt and answer of each turn that the warm start makes of a demonstration."""
    (turns,) = demonstrated([conversation], FORM, policies=["policy"])
    return [(turn.prompt_ids, turn.action_ids) for turn in turns]


def made_of(calls: Sequence[Call]) -> list[tuple[Sequence[int] | None, Sequence[int] | None]]:
    """Prompt and answer of each call as the gateway recorded them."""
    return [(call.prompt_ids, call.choices[0].token_ids) for call in calls]


async def test_the_warm_start_teaches_exactly_what_the_agent_asks(example: Any, play: Play) -> None:
    (task,) = example.tasks.train(count=1)
    conversation = await example.teacher.worked(task, tools=[example.agent.calculator()])
    answers = [said(message) for message in conversation["messages"] if message["role"] == "assistant"]

    result, calls = await play("solve", task, answers)

    assert (result.status, result.reward, result.output) == (RolloutStatus.SUCCEEDED, 1.0, f"answer: {task['answer']}")
    assert [call.agent for call in calls] == ["mathagent"] * 3
    assert made_of(calls) == taught(conversation)
    (shown,) = example.tasks.demonstrations(count=1)
    assert shown["tools"] == conversation["tools"]


async def test_the_model_is_told_what_was_wrong_with_its_call(example: Any, play: Play) -> None:
    (task,) = example.tasks.train(count=1)
    calls = ['{"expression": "1/0"}', '{"sum": "1+1"}']
    answers = [f'<tool_call>{{"name": "calc", "arguments": {call}}}</tool_call>' for call in calls]

    result, made = await play("solve", task, [*answers, f"answer: {task['answer']}"])

    assert result.reward == 1.0
    assert [call.agent for call in made] == ["mathagent"] * 3
    heard = [message["content"] for message in made[2].request["messages"] if message["role"] == "tool"]
    assert heard[0] == "division by zero"
    assert "Field required" in heard[1]


async def test_an_agent_that_only_calculates_has_not_answered(play: Play) -> None:
    task = {"question": "What is 6*7?", "answer": "42"}
    call = '<tool_call>{"name": "calc", "arguments": {"expression": "6*7"}}</tool_call>'

    result, made = await play("solve", task, [call] * 3)

    assert (result.reward, result.output, [call.agent for call in made]) == (0.0, None, ["mathagent"] * 3)


async def test_real_problems_are_asked_with_more_room_and_more_calls(example: Any, play: Play) -> None:
    task = {"question": "How many?", "answer": "C"}
    call = '<tool_call>{"name": "calc", "arguments": {"expression": "6*7"}}</tool_call>'

    result, made = await play("solve_calc_x", task, [call] * 9 + ["It is C.\nanswer: C"])

    assert (result.reward, [call.agent for call in made]) == (1.0, ["mathagent"] * 10)
    assert continuation_figures(call.continuation for call in made)["calls"] == {"first": 1, "extended": 9}
    assert made[0].request["messages"][0]["content"] == example.agent.CALC_X_SYSTEM


async def test_the_calculator_behind_an_mcp_server_serves_the_same_agent(example: Any, play: Play) -> None:
    (task,) = example.tasks.train(count=1)
    async with example.agent.mcp_calculator() as workbench:
        conversation = await example.teacher.worked(task, workbench=workbench)
    answers = [said(message) for message in conversation["messages"] if message["role"] == "assistant"]

    result, calls = await play("solve_with_mcp", task, answers)

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert [call.agent for call in calls] == ["mathagent"] * 3
    assert made_of(calls) == taught(conversation)
    (shown,) = example.tasks.demonstrations_with_mcp(count=1)
    assert shown["tools"] == conversation["tools"]
    heard = [message["content"] for message in conversation["messages"] if message["role"] == "tool"]
    assert heard == [example.calculator.calculate(step) for step in task["steps"]]
