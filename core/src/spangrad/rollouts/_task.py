"""What an agent is run on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spangrad.errors import TaskError


@dataclass(frozen=True, slots=True)
class Task:
    """One input of the agent.

    Raises:
        TaskError: the id is empty, or the data cannot be written as JSON.
    """

    task_id: str
    """Stable over runs; names the task in the store and in reports."""
    data: Any
    """JSON-able; what the agent gets."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise TaskError("A task has an empty task_id", cure="Give each task an id of its own")
        try:
            json.dumps(self.data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TaskError(
                f"The data of task {self.task_id!r} cannot be written as JSON: {error}",
                cure="Use text, numbers, booleans, lists and objects only",
            ) from error
