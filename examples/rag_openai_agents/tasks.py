"""Questions about the invented people, and the worked examples the warm start imitates.

Training asks four kinds of question in four phrasings each; the demonstrations show two phrasings of each kind. One held-out set asks
about people training never asks about, the other does so in phrasings it never uses either. In most phrasings the passage says
it in other words than the question, so that reading the right one out of those found has to be learnt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import agent
import corpus
import retrieval
from corpus import HELDOUT, Person


class Task(TypedDict):
    """One question; plain JSON."""

    task_id: str
    question: str
    answers: list[str]
    """What counts as right, in any of these wordings."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question."""

    fact: str
    """Which fact of a person it asks for."""
    phrasings: tuple[str, ...]
    """Trained on; the demonstrations show the first two."""
    unseen: tuple[str, ...]
    """Asked only in the second held-out set."""


KINDS = (
    Kind(
        "city",
        (
            "Where was {name} born?",
            "What is the birthplace of {name}?",
            "From which city does {name} come?",
            "Name the home city of {name}.",
        ),
        ("Which city is {name} from?", "In what city did the life of {name} begin?"),
    ),
    Kind(
        "job",
        (
            "What does {name} work as?",
            "What is the job of {name}?",
            "How does {name} earn a living?",
            "Name the profession of {name}.",
        ),
        ("What trade does {name} have?", "Tell me the occupation of {name}."),
    ),
    Kind(
        "instrument",
        (
            "What does {name} play?",
            "Which instrument has {name} learnt?",
            "What is the instrument of {name}?",
            "On what does {name} make music?",
        ),
        ("Name the instrument {name} performs on.", "What does one hear when {name} makes music?"),
    ),
    Kind(
        "animal",
        (
            "What animal does {name} keep?",
            "Which pet does {name} have?",
            "What is the animal of {name}?",
            "Name the pet of {name}.",
        ),
        ("What kind of pet lives with {name}?", "Which animal belongs to {name}?"),
    ),
)


def train(count: int = 384, seed: int = 0) -> list[Task]:
    """What reinforcement learning tries."""
    return _draw("train", seed, count, corpus.people()[:-HELDOUT], [kind.phrasings for kind in KINDS])


def heldout(count: int = 72, seed: int = 0) -> list[Task]:
    """The trained phrasings, asked about other people."""
    return _draw("heldout", seed, count, corpus.people()[-HELDOUT:], [kind.phrasings for kind in KINDS])


def unseen_phrasings(count: int = 72, seed: int = 0) -> list[Task]:
    """The same other people, in phrasings that neither training nor the demonstrations contain."""
    return _draw("unseen", seed, count, corpus.people()[-HELDOUT:], [kind.unseen for kind in KINDS])


def demonstrations(count: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """Worked conversations for the warm start, in OpenAI's fine-tuning format."""
    rng = random.Random(f"shown {seed}")
    people = corpus.people()[:-HELDOUT]
    return [worked(KINDS[number % len(KINDS)], rng.choice(people), rng.randrange(2)) for number in range(count)]


def worked(kind: Kind, person: Person, phrasing: int = 0) -> dict[str, Any]:
    """The whole conversation of an agent that searches for the name, reads what is found, and answers."""
    arguments = json.dumps({"query": person.name})
    function = {"name": agent.SEARCH, "arguments": arguments}
    return {
        "messages": [
            {"role": "system", "content": agent.INSTRUCTIONS},
            {"role": "user", "content": kind.phrasings[phrasing].format(name=person.name)},
            {"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "call_0", "content": "\n".join(retrieval.index().best(person.name))},
            {"role": "assistant", "content": f"<answer>{getattr(person, kind.fact)}</answer>"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
    }


TOOL = {"name": agent.SEARCH, "description": "Finds passages", "parameters": agent.PARAMETERS}
"""The tool as the model is shown it."""


def _draw(name: str, seed: int, count: int, people: Sequence[Person], phrasings: Sequence[Sequence[str]]) -> list[Task]:
    """`count` questions that go through the kinds again and again, with people and phrasings drawn."""
    rng = random.Random(f"{name} {seed}")
    tasks: list[Task] = []
    for position in range(count):
        person = rng.choice(people)
        question = rng.choice(phrasings[position % len(KINDS)]).format(name=person.name)
        answer = getattr(person, KINDS[position % len(KINDS)].fact)
        tasks.append({"task_id": f"{name}-{position:03d}", "question": question, "answers": [answer]})
    return tasks
