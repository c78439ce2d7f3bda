"""The tasks, reward and agent of examples/from_scratch. That it learns is what `make train` shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import RolloutStatus, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import continuation_figures

EXAMPLE = ("from_scratch", "agent", "tasks")
SETS = ("train", "heldout", "unseen_phrasings")


@pytest.fixture
def example(example: SimpleNamespace) -> tuple[ModuleType, ModuleType]:
    """The example's agent and tasks modules."""
    return example.agent, example.tasks


def pairs(questions: list[str]) -> set[frozenset[int]]:
    """Every unordered pair of a two-digit and a one-digit number that some question contains."""
    found = set()
    for question in questions:
        numbers = [int(number) for number in re.findall(r"\d+", question)]
        found |= {frozenset((x, y)) for x in numbers for y in numbers if x >= 10 > y}
    return found


def test_no_pair_of_heldout_numbers_occurs_in_training_or_in_a_demonstration(example: Any) -> None:
    _, tasks = example
    held = [task["question"] for make in (tasks.heldout, tasks.unseen_phrasings) for task in make()]
    shown = [conversation["messages"][1]["content"] for conversation in tasks.demonstrations(count=300)]
    trained = [task["question"] for seed in range(3) for task in tasks.train(count=500, seed=seed)]

    assert len(pairs(held)) > 60
    assert not pairs(held) & pairs(shown + trained)


def test_unseen_phrasings_are_never_asked_in_training_or_demonstrations(example: Any) -> None:
    _, tasks = example

    for kind in tasks.KINDS:
        assert not set(kind.unseen) & {phrasing for other in tasks.KINDS for phrasing in other.phrasings}
    unseen = {re.sub(r"\d+", "#", task["question"]) for task in tasks.unseen_phrasings(count=300)}
    trained = {re.sub(r"\d+", "#", task["question"]) for task in tasks.train(count=1000)}
    assert not unseen & trained


@pytest.mark.parametrize("name", SETS)
def test_tasks_are_the_same_every_time_and_differ_by_seed(example: Any, name: str) -> None:
    make = getattr(example[1], name)

    assert make() == make()
    assert [task["question"] for task in make()] != [task["question"] for task in make(seed=1)]
    assert json.loads(json.dumps(make())) == make()


@pytest.mark.parametrize("name", SETS)
def test_every_task_has_an_id_of_its_own_and_an_answer_of_its_numbers(example: Any, name: str) -> None:
    agent, tasks = example
    made = getattr(tasks, name)()

    assert len({task["task_id"] for task in made}) == len(made) >= 64
    for task in made:
        assert task["answer"] == agent.calculate(task["expression"]) > 0
        assert sorted(re.findall(r"\d+", task["expression"])) == sorted(re.findall(r"\d+", task["question"]))


def test_demonstrations_show_one_phrasing_of_each_kind_and_end_in_full_reward(example: Any) -> None:
    agent, tasks = example
    signs: Counter[str] = Counter()
    asked: list[str] = []

    for conversation in tasks.demonstrations(count=66):
        system, question, ask, result, answer = conversation["messages"]
        asked.append(question["content"])
        assert [system, question] == agent.prompt({"question": question["content"]})
        arguments = ask["tool_calls"][0]["function"]["arguments"]
        sign = re.fullmatch(r"\d+([-+*])\d", json.loads(arguments)["expression"])
        assert sign
        signs[sign[1]] += 1
        assert agent.use_calc(arguments) == result["content"]
        output = {"result": result["content"], "answer": answer["content"]}
        assert agent.reward({"answer": int(result["content"])}, output) == 1.0
    assert signs == {"+": 22, "*": 22, "-": 22}
    shapes = {
        re.sub(r"\d+|\b[A-Z]\w+ has|\b(?:" + "|".join(tasks.THINGS) + r")\b", "_", question) for question in asked
    }
    assert len(shapes) == 3


@pytest.mark.parametrize(
    ("result", "answer", "reward"),
    [
        ("42", "answer: 42", 1.0),
        ("42", "It is 42.", 0.8),
        (None, "answer: 42", 0.8),  # right, but without the calculator
        ("41", "answer: 41", 0.2),
        ("41", "answer: 42", 0.8),
        (None, "answer: 41", 0.0),  # the form without the calculator earns nothing
        ("error: only integers and + - *", "answer: error: only integers and + - *", 0.0),
        ("42", "answer: 142", 0.0),
        ("42", None, 0.0),
        (None, "", 0.0),
    ],
)
def test_reward_is_for_the_right_number_and_for_saying_what_the_calculator_gave(
    example: Any, result: str | None, answer: str | None, reward: float
) -> None:
    agent, _ = example
    output = {"result": result, "answer": answer}

    assert agent.reward({"answer": 42}, output) == pytest.approx(reward)
    assert agent.success({"answer": 42}, output) is (reward >= 0.8)


@pytest.mark.parametrize(
    ("expression", "value"), [("97+3", 100), ("50-4*9", 14), (" (2+3)*4 ", 20), ("7 - 9", -2), ("12", 12)]
)
def test_calculator_works_out_integers(example: Any, expression: str, value: int) -> None:
    assert example[0].calculate(expression) == value


@pytest.mark.parametrize(
    "arguments",
    [
        "not json",
        "[]",
        "3",
        "null",
        "{}",
        '{"expression": 3}',
        '{"expression": null}',
        '{"expression": ""}',
        '{"expression": "2+"}',
        '{"expression": "-3"}',
        '{"expression": "07+1"}',
        '{"expression": "2 apples"}',
        '{"expression": "9**9**9"}',
        '{"expression": "3(4)"}',
        '{"expression": "()"}',
        '{"expression": "((((((((((((((((((1"}',
        '{"expression": "__import__(\'os\')"}',
        json.dumps({"expression": "1+" * 5000 + "1"}),
    ],
)
def test_calculator_answers_bad_arguments_with_an_error_text(example: Any, arguments: str) -> None:
    assert example[0].use_calc(arguments).startswith("error: ")


async def test_the_agents_prompts_are_those_of_the_demonstrations(
    example: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven through the gateway by a model that says what the demonstration says."""
    agent, tasks = example
    monkeypatch.setattr(agent, "MAX_TOKENS", 200)  # here a token is a byte
    (task,) = tasks.train(count=1)
    conversation = tasks.worked(task)
    form = ByteChatFormat()

    def answer(prompt: ScriptedPrompt) -> str:
        turn = conversation[4] if prompt.messages[-1]["role"] == "tool" else conversation[2]
        return form.decode(form.render_answer(turn), skip_special=True)

    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(answer), form, "scripted")
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway:

        async def solve(data: Any, rollout: Any) -> float:
            async with agent.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
                monkeypatch.setattr(agent, "client", lambda: client)
                return float(agent.reward(data, await agent.solve(data)))

        runner = Runner(load_agent(solve, tmp_path), None, gateway, store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", dict(task)), "train", 1)])
        calls = store.calls("r")
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert [call.prompt_ids for call in calls] == [
        form.render(conversation[:2], tools=[agent.CALC]),
        form.render(conversation[:4], tools=[agent.CALC]),
    ]
    assert continuation_figures(call.continuation for call in calls)["calls"] == {"first": 1, "extended": 1}
