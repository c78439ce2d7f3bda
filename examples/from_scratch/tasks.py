"""Word problems made from a seed, and the worked examples the warm start imitates.

Reinforcement learning tries three kinds of problem in four phrasings each; the demonstrations show one phrasing of each kind.
Every (large number, small number) pair belongs to one side, training or held-out, and never to both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
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
    """One kind of problem: its expression in a (large) and b (small), and its phrasings."""

    expression: str
    phrasings: tuple[str, ...]
    """Trained on; the demonstrations show the first."""
    unseen: tuple[str, ...]
    """Asked only in the second held-out set."""


KINDS = (
    Kind(
        "{a}+{b}",
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
        "{a}-{b}",
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
        "{a}*{b}",
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
)
NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("pens", "apples", "books", "cards", "coins", "eggs", "shells", "stamps")
LARGE, SMALL = range(20, 100), range(2, 10)


def train(count: int = 396, seed: int = 0) -> list[Task]:
    """What reinforcement learning tries: all kinds, the trained phrasings, the training numbers."""
    return _draw("train", seed, count, [(kind, kind.phrasings) for kind in KINDS], heldout=False)


def heldout(count: int = 72, seed: int = 0) -> list[Task]:
    """The same kinds and phrasings as in `train`, other numbers."""
    return _draw("heldout", seed, count, [(kind, kind.phrasings) for kind in KINDS], heldout=True)


def unseen_phrasings(count: int = 72, seed: int = 0) -> list[Task]:
    """Held-out numbers in phrasings that neither training nor the demonstrations contain."""
    return _draw("unseen", seed, count, [(kind, kind.unseen) for kind in KINDS], heldout=True)


def demonstrations(count: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """Worked conversations for the warm start, in OpenAI's fine-tuning format."""
    shown = _draw("shown", seed, count, [(kind, kind.phrasings[:1]) for kind in KINDS], heldout=False)
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


def number_pairs(*, heldout: bool) -> list[tuple[int, int]]:
    """The (large, small) pairs of one side: a fixed quarter of all is held out."""
    pairs = [(large, small) for large in LARGE for small in SMALL]
    random.Random(0).shuffle(pairs)
    quarter = len(pairs) // 4
    return sorted(pairs[:quarter] if heldout else pairs[quarter:])


def _draw(
    name: str, seed: int, count: int, turns: Sequence[tuple[Kind, Sequence[str]]], *, heldout: bool
) -> list[Task]:
    """`count` tasks; `turns` are gone through again and again: a kind, and the questions to choose from."""
    rng = random.Random(f"{name} {seed}")
    pairs = number_pairs(heldout=heldout)
    tasks: list[Task] = []
    for number in range(count):
        kind, questions = turns[number % len(turns)]
        a, b = rng.choice(pairs)
        filled = {"a": a, "b": b, "who": rng.choice(NAMES), "things": rng.choice(THINGS)}
        expression = kind.expression.format(**filled)
        question = rng.choice(questions).format(**filled)
        tasks.append(
            {
                "task_id": f"{name}-{number:03d}",
                "question": question,
                "expression": expression,
                "answer": agent.calculate(expression),
            }
        )
    return tasks
