"""The tasks, reward and calculator of examples/math_autogen. That it learns is what its README shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

EXAMPLE = ("math_autogen", "agent", "calculator", "tasks", "teacher")
SETS = ("train", "heldout", "unseen_phrasings")


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
