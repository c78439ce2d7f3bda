"""Word problems made from a seed, and the few worked examples the warm start imitates.

The demonstrations show how the calculator is called, on sums that are spelled out ("What is 46 plus 3 times 2?"). None is a
word problem: what to ask the calculator then is left to reinforcement learning. Every (large number, small number) pair
belongs to one side, training or held-out, and never to both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import agent


class Task(TypedDict):
    """One word problem; plain JSON."""

    task_id: str
    question: str
    expression: str
    """A right way to ask the calculator; the model never sees it outside the demonstrations."""
    answer: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem: its expression in a (large), b and c (small numbers), and its phrasings."""

    name: str
    expression: str
    spoken: str
    """The expression in words, as the demonstrations ask for it."""
    phrasings: tuple[str, ...]
    """Trained on."""
    unseen: tuple[str, ...]
    """Asked only in the second held-out set."""


KINDS = (
    Kind(
        "add",
        "{a}+{b}",
        "{a} plus {b}",
        (
            "{who} has {a} {things} and buys {b} more. How many {things} now?",
            "{who} picks {a} {things}, then {b} more. How many {things} in all?",
            "There are {a} {things} here and {b} there. How many {things} together?",
            "{who} owns {a} {things}. A friend brings {b}. How many {things} now?",
        ),
        (
            "A shelf holds {a} {things}. {who} adds {b}. How many {things} does it hold?",
            "{who} found {b} {things} and already had {a}. What is the total?",
        ),
    ),
    Kind(
        "add packs",
        "{a}+{b}*{c}",
        "{a} plus {b} times {c}",
        (
            "{who} has {a} {things} and buys {b} packs of {c}. How many {things} now?",
            "There are {a} {things} here and {b} boxes of {c} there. How many {things} together?",
            "{who} owns {a} {things}. {b} friends bring {c} each. How many {things} now?",
            "{who} has {a} {things} and gets {c} a day for {b} days. How many {things} now?",
        ),
        (
            "A shelf holds {a} {things}. {who} adds {b} rows of {c}. How many {things} does it hold?",
            "To {a} {things} {who} adds {b} bags with {c} in each. What is the total?",
        ),
    ),
    Kind(
        "subtract",
        "{a}-{b}",
        "{a} minus {b}",
        (
            "{who} has {a} {things} and loses {b}. How many {things} are left?",
            "{who} had {a} {things} and sold {b}. How many {things} remain?",
            "There are {a} {things}. {who} takes {b} away. How many stay?",
            "{who} gives away {b} of {a} {things}. How many {things} are left?",
        ),
        (
            "Of {a} {things}, {b} are broken. How many still work?",
            "{who} ate {b} of the {a} {things}. How many {things} are left?",
        ),
    ),
    Kind(
        "multiply",
        "{a}*{b}",
        "{a} times {b}",
        (
            "A box holds {a} {things}. How many {things} are in {b} boxes?",
            "{who} buys {b} packs of {a} {things}. How many {things} is that?",
            "Each of {b} friends has {a} {things}. How many {things} in all?",
            "One costs {a} coins. What do {b} {things} cost?",
        ),
        (
            "{who} fills {b} bags with {a} {things} each. How many {things} are packed?",
            "Every day {who} sells {a} {things}. How many are sold in {b} days?",
        ),
    ),
    Kind(
        "take packs",
        "{a}-{b}*{c}",
        "{a} minus {b} times {c}",
        (
            "{who} has {a} {things} and sells {b} packs of {c}. How many {things} are left?",
            "{who} had {a} {things} and gave {c} to each of {b} friends. How many {things} remain?",
            "There are {a} {things}. {b} people take {c} each. How many stay?",
            "{who} has {a} {things} and loses {c} a day for {b} days. How many {things} are left?",
        ),
        (
            "Of {a} {things}, {b} boxes of {c} are broken. How many still work?",
            "{who} ate {c} of the {a} {things} every day for {b} days. How many {things} are left?",
        ),
    ),
)
NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("pens", "apples", "books", "cards", "coins", "eggs", "shells", "stamps")
LARGE, SMALL = range(20, 100), range(2, 10)


def _split(*, heldout: bool) -> frozenset[tuple[int, int]]:
    """The (large, small) pairs of one side: a fixed quarter of all is held out."""
    pairs = [(large, small) for large in LARGE for small in SMALL]
    random.Random(0).shuffle(pairs)
    quarter = len(pairs) // 4
    return frozenset(pairs[:quarter] if heldout else pairs[quarter:])


def _draw(name: str, seed: int, count: int, *, wordings: Mapping[str, Sequence[str]], heldout: bool) -> list[Task]:
    """`count` tasks, the kinds in turn; `wordings` are the questions to choose from, by kind."""
    rng = random.Random(f"{name} {seed}")
    pairs = _split(heldout=heldout)
    ordered = sorted(pairs)
    tasks: list[Task] = []
    while len(tasks) < count:
        kind = KINDS[len(tasks) % len(KINDS)]
        (a, b), c = rng.choice(ordered), rng.choice(SMALL)
        if (a, c) not in pairs or b == c or a <= b * c:
            continue
        wording = rng.choice(wordings[kind.name])
        expression = kind.expression.format(a=a, b=b, c=c)
        tasks.append(
            {
                "task_id": f"{name}-{len(tasks):03d}",
                "question": wording.format(who=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b, c=c),
                "expression": expression,
                "answer": agent.calculate(expression),
            }
        )
    return tasks


TRAINED = {kind.name: kind.phrasings for kind in KINDS}
UNSEEN = {kind.name: kind.unseen for kind in KINDS}
SPELLED_OUT = {kind.name: (f"What is {kind.spoken}?",) for kind in KINDS}


def train(count: int = 400, seed: int = 0) -> list[Task]:
    """What reinforcement learning tries: the trained phrasings, the training numbers."""
    return _draw("train", seed, count, wordings=TRAINED, heldout=False)


def heldout(count: int = 100, seed: int = 0) -> list[Task]:
    """The same phrasings as in `train`, other numbers."""
    return _draw("heldout", seed, count, wordings=TRAINED, heldout=True)


def unseen_phrasings(count: int = 100, seed: int = 0) -> list[Task]:
    """Held-out numbers in phrasings that training does not contain."""
    return _draw("unseen", seed, count, wordings=UNSEEN, heldout=True)


def demonstrations(count: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """Worked conversations for the warm start, in OpenAI's fine-tuning format; their sums are spelled out."""
    shown = _draw("shown", seed, count, wordings=SPELLED_OUT, heldout=False)
    return [{"messages": worked(task), "tools": [agent.CALC]} for task in shown]


def worked(task: Task) -> list[dict[str, Any]]:
    """The whole conversation of an agent that does the task right."""
    function = {"name": "calc", "arguments": json.dumps({"expression": task["expression"]})}
    return [
        *agent.prompt(task),
        {"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_0", "content": str(task["answer"])},
        {"role": "assistant", "content": f"answer: {task['answer']}"},
    ]
