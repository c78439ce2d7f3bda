"""Questions made from a seed, and the worked examples the warm start imitates.

Training asks about ten databases, five kinds of question in four phrasings each; the demonstrations show one phrasing of each
kind. One held-out set asks about databases that training never sees, the other does so in phrasings it never sees either.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import agent
import database
from database import HELDOUT, TRAINED, Table


class Task(TypedDict):
    """One question; plain JSON."""

    task_id: str
    database: str
    question: str
    query: str
    """The reference; the model never sees it outside the demonstrations."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question."""

    query: str
    phrasings: tuple[str, ...]
    """Trained on; the demonstrations show the first."""
    unseen: tuple[str, ...]
    """Asked only in the second held-out set."""


KINDS = (
    Kind(
        "SELECT count(*) FROM {table}",
        (
            "How many {plural} are there?",
            "Count the {plural}.",
            "What is the number of {plural}?",
            "Tell me how many {plural} we have.",
        ),
        ("What is the total count of {plural}?", "How many {plural} does the table hold?"),
    ),
    Kind(
        "SELECT {key} FROM {table} WHERE {number} > {value}",
        (
            "Give the {key} of {plural} with {number} above {value}.",
            "Which {plural} have {number} over {value}? Give the {key}.",
            "List the {key} of each {table} whose {number} is more than {value}.",
            "For {plural} with {number} greater than {value}, show the {key}.",
        ),
        (
            "Show the {key} of {plural} whose {number} exceeds {value}.",
            "What {key} do {plural} with {number} beyond {value} have?",
        ),
    ),
    Kind(
        "SELECT {key} FROM {table} ORDER BY {number} DESC LIMIT 1",
        (
            "Give the {key} of the {table} with the highest {number}.",
            "Which {table} has the most {number}? Give the {key}.",
            "What is the {key} of the {table} with the largest {number}?",
            "Show the {key} of the {table} that has the greatest {number}.",
        ),
        (
            "Name the {key} of the {table} with the top {number}.",
            "Whose {number} is highest? Give the {key} of that {table}.",
        ),
    ),
    Kind(
        "SELECT avg({number}) FROM {table}",
        (
            "What is the average {number} of {plural}?",
            "Give the mean {number} of all {plural}.",
            "How much {number} do {plural} have on average?",
            "Find the average {number} over the {plural}.",
        ),
        ("Work out the mean {number} over all {plural}.", "On average, what {number} does a {table} have?"),
    ),
    Kind(
        "SELECT {number} FROM {table} WHERE {key} = '{name}'",
        (
            "What is the {number} of the {table} {name}?",
            "Give the {number} of {name}.",
            "Which {number} does the {table} {name} have?",
            "Look up {name} and show its {number}.",
        ),
        ("Tell me the {number} of {name}.", "For the {table} {name}, what {number} is stored?"),
    ),
)


def train(count: int = 400, seed: int = 0) -> list[Task]:
    """What reinforcement learning tries: all kinds, the trained phrasings, the trained databases."""
    return _draw("train", seed, count, TRAINED, [kind.phrasings for kind in KINDS])


def heldout(count: int = 70, seed: int = 0) -> list[Task]:
    """The trained phrasings, asked about databases that training never sees."""
    return _draw("heldout", seed, count, HELDOUT, [kind.phrasings for kind in KINDS])


def unseen_phrasings(count: int = 70, seed: int = 0) -> list[Task]:
    """The same held-out databases, in phrasings that neither training nor the demonstrations contain."""
    return _draw("unseen", seed, count, HELDOUT, [kind.unseen for kind in KINDS])


def demonstrations(count: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    """Worked conversations of all three agents for the warm start, in OpenAI's fine-tuning format.

    Of each question there are four: the writer's query, the checker's verdict on it and on a wrong one, and the rewriter's query.
    """
    rng = random.Random(f"mistakes {seed}")
    shown = _draw("shown", seed, count, TRAINED, [kind.phrasings[:1] for kind in KINDS])
    return [{"messages": messages} for task in shown for messages in worked(task, rng)]


def demonstrations_by_policy() -> list[dict[str, Any]]:
    """The same, each for the policy that its agent asks in train.adapters.toml: the checker asks the writer's."""
    names = ("writer", "writer", "writer", "rewriter")
    return [{**one, "policy": names[number % len(names)]} for number, one in enumerate(demonstrations())]


def worked(task: Task, rng: random.Random) -> list[list[dict[str, str]]]:
    """The conversations of agents that do the task right, the rewriter after a mistake."""
    path = database.path_of(task["database"])
    question, schema, right = task["question"], database.schema(path), task["query"]
    wrong = mistaken(task, rng)
    found, missed = database.outcome(path, right), database.outcome(path, wrong)
    return [
        _conversation(agent.write_prompt(question, schema), right),
        _conversation(agent.check_prompt(question, right, found), "ok"),
        _conversation(agent.check_prompt(question, wrong, missed), "wrong"),
        _conversation(agent.rewrite_prompt(question, schema, wrong, missed), right),
    ]


def mistaken(task: Task, rng: random.Random) -> str:
    """A wrong query for the task: a column that is not there, a table that is not, or another question's query."""
    table = next(table for table in (*TRAINED, *HELDOUT) if table.name == task["database"])
    right = task["query"]
    others = [
        right.replace(f"FROM {table.name}", f"FROM {table.plural}"),
        right.replace(f"SELECT {table.key}", "SELECT id") if f"SELECT {table.key}" in right else right[:-1],
        f"SELECT {table.category} FROM {table.name}",  # noqa: S608 - own names
    ]
    return rng.choice(others)


def _conversation(prompt: agent.Messages, answer: str) -> list[dict[str, str]]:
    return [*({"role": role, "content": content} for role, content in prompt), {"role": "assistant", "content": answer}]


def _draw(name: str, seed: int, count: int, tables: Sequence[Table], phrasings: Sequence[Sequence[str]]) -> list[Task]:
    """`count` tasks that go through the kinds again and again, with databases and phrasings drawn."""
    rng = random.Random(f"{name} {seed}")
    tasks: list[Task] = []
    for position in range(count):
        kind = KINDS[position % len(KINDS)]
        table = rng.choice(tables)
        rows = database.rows_of(table)
        column = rng.randrange(2)
        values = sorted((row[2], row[3])[column] for row in rows)
        filled = {
            "table": table.name,
            "plural": table.plural,
            "key": table.key,
            "number": table.numbers[column],
            "value": rng.choice(values[2:-2]) + 1,
            "name": rng.choice(rows)[0],
        }
        tasks.append(
            {
                "task_id": f"{name}-{position:03d}",
                "database": table.name,
                "question": rng.choice(phrasings[position % len(KINDS)]).format(**filled),
                "query": kind.query.format(**filled),
            }
        )
    return tasks
