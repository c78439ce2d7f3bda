"""What an agent is run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spangrad.capture import problem_of_id
from spangrad.errors import TaskError
from spangrad.rollouts._json_data import problem_of

_SHOWN: Final = 60
"""Characters of a wrong id that an error repeats."""


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
        if (problem := problem_of_id(self.task_id)) is not None:
            raise TaskError(
                f"The task_id {ascii(self.task_id)[:_SHOWN]} {problem}",
                cure="Give each task a short id of its own, and keep a long text under another key",
            )
        if (problem := problem_of(self.data)) is not None:
            raise TaskError(
                f"The data of task {self.task_id!r} cannot be written as JSON: {problem}",
                cure="Use text, numbers, booleans, lists and objects only",
            )
