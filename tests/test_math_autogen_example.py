"""The tasks, reward and agent of examples/math_autogen. That it learns is what its README shows."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.store import RolloutStatus, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.training._warm_start import demonstrated
from spangrad.transitions import Call

FOLDER = Path(__file__).parents[1] / "examples" / "math_autogen"
MODULES = ("agent", "calculator", "tasks", "teacher")
SETS = ("train", "heldout", "unseen_phrasings")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules by name, forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def pairs(question: str) -> set[frozenset[int]]:
    """The unordered pairs of a two-digit and a one-digit number in a question."""
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    return {frozenset((x, y)) for x in numbers for y in numbers if x >= 10 > y}


def test_no_pair_of_heldout_numbers_occurs_in_training_or_in_a_demonstration(example: Any) -> None:
    tasks = example.tasks
    held = [pairs(task["question"]) for make in (tasks.heldout, tasks.unseen_phrasings) for task in make()]
    shown = [pairs(conversation["messages"][1]["content"]) for conversation in tasks.demonstrations(count=150)]
    trained = [pairs(task["question"]) for seed in range(3) for task in tasks.train(count=500, seed=seed)]

    assert all(len(found) == 2 for found in held)
    assert not set().union(*held) & set().union(*shown, *trained)


def test_unseen_phrasings_are_never_asked_in_training_or_demonstrations(example: Any) -> None:
    tasks = example.tasks

    for kind in tasks.KINDS:
        assert not set(kind.unseen) & {phrasing for other in tasks.KINDS for phrasing in other.phrasings}
    unseen = {re.sub(r"\d+", "#", task["question"]) for task in tasks.unseen_phrasings(count=300)}
    trained = {re.sub(r"\d+", "#", task["question"]) for task in tasks.train(count=1000)}
    assert not unseen & trained


@pytest.mark.parametrize("name", SETS)
def test_tasks_are_the_same_every_time_and_differ_by_seed(example: Any, name: str) -> None:
    make = getattr(example.tasks, name)

    assert make() == make()
    assert [task["question"] for task in make()] != [task["question"] for task in make(seed=1)]
    assert json.loads(json.dumps(make())) == make()


@pytest.mark.parametrize("name", SETS)
def test_every_task_takes_two_steps_from_the_numbers_of_its_question(example: Any, name: str) -> None:
    made = getattr(example.tasks, name)()

    assert len({task["task_id"] for task in made}) == len(made) >= 72
    for task in made:
        first, second = task["steps"]
        a, sign, b = re.split(r"([-+*])", first)
        r, other, c = re.split(r"([-+*])", second)
        assert {sign, other} == {"*", "+"} or (sign, other) == ("-", "*")
        assert sorted((a, b, c)) == sorted(re.findall(r"\d+", task["question"]))
        between = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert int(r) == between > 0
        assert int(task["answer"]) == {"+": between + int(c), "*": between * int(c)}[other]


def test_demonstrations_show_one_phrasing_of_each_kind_step_by_step(example: Any) -> None:
    agent, tasks = example.agent, example.tasks
    asked: Counter[str] = Counter()
    conversations = tasks.demonstrations(count=66)

    for conversation in conversations:
        system, question, first, between, second, result, answer = conversation["messages"]
        assert system == {"role": "system", "content": agent.SYSTEM}
        asked[re.sub(r"\d+|\b(?:" + "|".join(tasks.NAMES + tasks.THINGS) + r")\b", "_", question["content"])] += 1
        for call, said in ((first, between), (second, result)):
            (made,) = call["tool_calls"]
            assert said["tool_call_id"] == made["id"]
            assert said["content"] == example.calculator.calculate(
                json.loads(made["function"]["arguments"])["expression"]
            )
        assert answer == {"role": "assistant", "content": f"answer: {result['content']}"}
        assert agent.reward({"answer": result["content"]}, answer["content"]) == 1.0
    assert sorted(asked.values()) == [22, 22, 22]
    assert tasks.demonstrations(count=66) == conversations
    assert json.loads(json.dumps(conversations)) == conversations


@pytest.mark.parametrize(
    ("right", "output", "reward"),
    [
        ("42", "answer: 42", 1.0),
        ("42", "That makes 42.", 1.0),
        ("42", "6*7 is 42\nANSWER: 42 coins", 1.0),
        ("42", "42 is not the answer: 41", 0.0),
        ("42", "answer: 142", 0.0),
        ("42", "answer: -42", 0.0),
        ("42", "answer: 42.0", 1.0),
        ("42", "answer: 42.4", 0.0),
        ("42", "answer:", 0.0),
        ("42", "", 0.0),
        ("42", None, 0.0),
        ("10_000", "answer: $10,000", 1.0),
        ("10_000", "answer: 10000.00", 1.0),
        ("5.6", "answer: 5.6", 1.0),
        ("0.125", "answer: 0.13", 0.0),  # it has finite decimals, so they are all wanted
        ("2/3", "answer: 2/3", 1.0),
        ("2/3", "answer: 4/6", 1.0),
        ("2/3", "answer: 0.67", 1.0),
        ("2/3", "answer: 2/3 = around 0.666667", 1.0),
        ("2/3", "answer: 0.66", 0.0),
        ("2/3", "answer: 0.7", 0.0),
        ("1/300", "answer: 0.00", 0.0),
        ("2/3", "answer: 1/0", 0.0),
        ("C", "answer: C", 1.0),
        ("C", "answer: (c).", 1.0),
        ("C", "answer: B", 0.0),
        ("C", "answer: 6", 0.0),
        ("C", "answer: Choice of C or D", 0.0),
    ],
)
def test_reward_is_for_the_right_answer_alone(example: Any, right: str, output: str | None, reward: float) -> None:
    assert example.agent.reward({"answer": right}, output) == reward


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("97+3", "100"),
        ("50-4*9", "14"),
        (" (2+3)*4 ", "20"),
        ("7 - 9", "-2"),
        ("-3", "-3"),
        ("12", "12"),
        ("5_000*2", "10000"),
        ("0.1+0.2", "0.3"),
        ("1/8", "0.125"),
        ("-1/200", "-0.005"),
        ("1/(3/2)", "2/3 = around 0.666667"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("90/(1/4)", "360"),
    ],
)
def test_calculator_is_exact(example: Any, expression: str, result: str) -> None:
    assert example.calculator.calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    ["", "2+", "07+1", "2 apples", "9**9**9", "((2**60)**60)**60", "2**0.5", "1/0", "0**-1", "3(4)", "()", "1e9",
     "((((((((((((((((((1", "__import__('os')", "1//2*", "7//2", "\u0664+1", "1+" * 500 + "1", "1.2.3"],
)  # fmt: skip
def test_calculator_refuses_what_is_no_arithmetic(example: Any, expression: str) -> None:
    with pytest.raises(ValueError, match=r"only|large|zero"):
        example.calculator.calculate(expression)


@pytest.mark.parametrize(
    ("text", "number"),
    [("a 41", 41), ("-3.5", Fraction(-7, 2)), ("1,200", 1200), ("1, 2", 2), ("2/3", Fraction(2, 3)), ("x2", None)],
)
def test_the_last_number_of_a_text_is_read(example: Any, text: str, number: Fraction | None) -> None:
    assert example.calculator.last_number(text) == number


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
    (turns,) = demonstrated([conversation], FORM, policy="policy")
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
    assert len(calls) == 3
    assert made_of(calls) == taught(conversation)
    (shown,) = example.tasks.demonstrations(count=1)
    assert shown["tools"] == conversation["tools"]


async def test_the_model_is_told_what_was_wrong_with_its_call(example: Any, play: Play) -> None:
    (task,) = example.tasks.train(count=1)
    calls = ['{"expression": "1/0"}', '{"sum": "1+1"}']
    answers = [f'<tool_call>{{"name": "calc", "arguments": {call}}}</tool_call>' for call in calls]

    result, made = await play("solve", task, [*answers, f"answer: {task['answer']}"])

    assert result.reward == 1.0
    heard = [message["content"] for message in made[2].request["messages"] if message["role"] == "tool"]
    assert heard[0] == "division by zero"
    assert "Field required" in heard[1]


async def test_an_agent_that_only_calculates_has_not_answered(play: Play) -> None:
    task = {"question": "What is 6*7?", "answer": "42"}
    call = '<tool_call>{"name": "calc", "arguments": {"expression": "6*7"}}</tool_call>'

    result, made = await play("solve", task, [call] * 3)

    assert (result.reward, result.output, len(made)) == (0.0, None, 3)


async def test_real_problems_are_asked_with_more_room_and_more_calls(example: Any, play: Play) -> None:
    task = {"question": "How many?", "answer": "C"}
    call = '<tool_call>{"name": "calc", "arguments": {"expression": "6*7"}}</tool_call>'

    result, made = await play("solve_calc_x", task, [call] * 9 + ["It is C.\nanswer: C"])

    assert (result.reward, len(made)) == (1.0, 10)
    assert made[0].request["messages"][0]["content"] == example.agent.CALC_X_SYSTEM


async def test_the_calculator_behind_an_mcp_server_serves_the_same_agent(example: Any, play: Play) -> None:
    (task,) = example.tasks.train(count=1)
    async with example.agent.mcp_calculator() as workbench:
        conversation = await example.teacher.worked(task, workbench=workbench)
    answers = [said(message) for message in conversation["messages"] if message["role"] == "assistant"]

    result, calls = await play("solve_with_mcp", task, answers)

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert len(calls) == 3
    assert made_of(calls) == taught(conversation)
    (shown,) = example.tasks.demonstrations_with_mcp(count=1)
    assert shown["tools"] == conversation["tools"]
    heard = [message["content"] for message in conversation["messages"] if message["role"] == "tool"]
    assert heard == [example.calculator.calculate(step) for step in task["steps"]]
