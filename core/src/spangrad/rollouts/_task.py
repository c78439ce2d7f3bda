"""What an agent is run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spangrad.errors import TaskError
from spangrad.rollouts._json_data import problem_of

LONGEST_ID: Final = 200
"""Characters of a task's id. It becomes part of rollout ids, and so of URLs and headers, which servers limit."""


@dataclass(frozen=True, slots=True)
class Task:
    """One input of the agent.

    Raises:
        TaskError: the id is empty or too long, or the data cannot be written as JSON.
    """

    task_id: str
    """Stable over runs; names the task in the store and in reports."""
    data: Any
    """JSON-able; what the agent gets."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise TaskError("A task has an empty task_id", cure="Give each task an id of its own")
        if len(self.task_id) > LONGEST_ID:
            raise TaskError(
                f"The task_id {self.task_id[:40]!r}... has {len(self.task_id)} characters, more than {LONGEST_ID}",
                cure="Give the task a short id, and keep the long text under a key of its own",
            )
        if (problem := problem_of(self.task_id)) is not None:
            raise TaskError(f"The task_id {self.task_id!r} cannot be used: {problem}", cure="Correct the text")
        if (problem := problem_of(self.data)) is not None:
            raise TaskError(
                f"The data of task {self.task_id!r} cannot be written as JSON: {problem}",
                cure="Use text, numbers, booleans, lists and objects only",
            )
