"""Two-step word problems made from a seed, and the worked examples the warm start imitates.

Reinforcement learning tries three kinds of problem in three phrasings each; the demonstrations show one phrasing of each
kind. Every (large number, small number) pair belongs to one side, training or held-out, and never to both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypedDict

import agent
from calculator import calculate
from teacher import worked


class Task(TypedDict):
    """One word problem; plain JSON."""

    task_id: str
    question: str
    steps: list[str]
    """A right way to ask the calculator, one step after the other; the model sees it only in the demonstrations."""
    answer: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem: its two steps in a (large), b and c (small), and its phrasings."""

    first: str
    second: str
    """In r, the result of the first step."""
    phrasings: tuple[str, ...]
    """Trained on; the demonstrations show the first."""
    unseen: tuple[str, ...]
    """Asked only in the second held-out set."""


KINDS = (
    Kind(
        "{a}+{b}",
        "{r}*{c}",
        (
            "{who} has {a} {things} and buys {b} more. Each costs {c} coins. What do all cost?",
            "{who} picks {a} {things}, then {b} more, and sells each for {c} coins. How many coins is that?",
            "There are {a} red and {b} blue {things}. Each weighs {c} grams. What do all weigh?",
        ),
        (
            "A shelf holds {a} {things}. {who} adds {b}. One is worth {c} coins. What are all worth?",
            "{who} found {a} {things}, and Zoe found {b}. They get {c} coins for each. How many coins do they get?",
        ),
    ),
    Kind(
        "{a}-{b}",
        "{r}*{c}",
        (
            "{who} has {a} {things} and loses {b}. Each costs {c} coins. What do the others cost?",
            "{who} had {a} {things}, gave away {b} and sold the rest for {c} coins each. How many coins is that?",
            "Of {a} {things}, {b} are broken. Each of the others weighs {c} grams. What do they weigh?",
        ),
        (
            "There are {a} {things}. {who} takes {b} away. One is worth {c} coins. What is the rest worth?",
            "{who} ate {b} of {a} {things}. For each one left Zoe pays {c} coins. How many coins does Zoe pay?",
        ),
    ),
    Kind(
        "{a}*{b}",
        "{r}+{c}",
        (
            "A box holds {a} {things}. {who} has {b} boxes and {c} more {things}. How many {things} in all?",
            "{who} buys {b} packs of {a} {things} and finds {c} more. How many {things} now?",
            "Each of {b} friends has {a} {things}. {who} has {c}. How many {things} together?",
        ),
        (
            "{who} fills {b} bags with {a} {things} each and keeps {c}. How many {things} were there?",
            "Every day {who} makes {a} {things}. After {b} days Zoe adds {c}. How many {things} are there?",
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
    """Worked conversations for the warm start, as AutoGen puts them to the model; in OpenAI's fine-tuning format."""

    async def work() -> list[dict[str, Any]]:
        return [await worked(task, tools=[agent.calculator()]) for task in _shown(count, seed)]

    return _run(work)


def demonstrations_with_mcp(count: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """The same with the tool as the MCP server describes it."""

    async def work() -> list[dict[str, Any]]:
        async with agent.mcp_calculator() as workbench:
            return [await worked(task, workbench=workbench) for task in _shown(count, seed)]

    return _run(work)


def number_pairs(*, heldout: bool) -> list[tuple[int, int]]:
    """The (large, small) pairs of one side: a fixed quarter of all is held out."""
    pairs = [(large, small) for large in LARGE for small in SMALL]
    random.Random(0).shuffle(pairs)
    quarter = len(pairs) // 4
    return sorted(pairs[:quarter] if heldout else pairs[quarter:])


def _shown(count: int, seed: int) -> list[Task]:
    return _draw("shown", seed, count, [(kind, kind.phrasings[:1]) for kind in KINDS], heldout=False)


def _draw(
    name: str, seed: int, count: int, turns: Sequence[tuple[Kind, Sequence[str]]], *, heldout: bool
) -> list[Task]:
    """`count` tasks; `turns` are gone through again and again: a kind, and the questions to choose from."""
    rng = random.Random(f"{name} {seed}")
    small: dict[int, list[int]] = {}
    for large, other in number_pairs(heldout=heldout):
        small.setdefault(large, []).append(other)
    usable = [large for large, others in small.items() if len(others) > 1]
    tasks: list[Task] = []
    for number in range(count):
        kind, questions = turns[number % len(turns)]
        a = rng.choice(usable)
        b, c = rng.sample(small[a], 2)
        filled = {"a": a, "b": b, "c": c, "who": rng.choice(NAMES), "things": rng.choice(THINGS)}
        first = kind.first.format(**filled)
        second = kind.second.format(**filled, r=calculate(first))
        tasks.append(
            {
                "task_id": f"{name}-{number:03d}",
                "question": rng.choice(questions).format(**filled),
                "steps": [first, second],
                "answer": calculate(second),
            }
        )
    return tasks


def _run(work: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Runs a coroutine function to its end in a thread of its own, because the caller's may have a running loop."""

    async def main() -> list[dict[str, Any]]:
        return await work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(main())).result()
