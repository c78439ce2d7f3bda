"""Reading tasks and demonstrations: from a JSON Lines file or from the user's own function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spangrad.errors import TaskError
from spangrad.rollouts import Task, load_function


def load_tasks(source: str, folder: Path) -> tuple[Task, ...]:
    """The tasks of a .jsonl file or "module:function".

    A task is a JSON object; its `task_id` (text or a whole number) names it, and where it has none its position does.

    Raises:
        TaskError: the source cannot be read, is empty, or holds something that is not a JSON object, or one id twice.
    """
    tasks: dict[str, Task] = {}
    for position, record in enumerate(_records(source, folder)):
        task_id = record.get("task_id", position)
        if isinstance(task_id, bool) or not isinstance(task_id, str | int):
            raise TaskError(
                f"{source}: task {position} has a task_id that is neither text nor a whole number: {task_id!r}"
            )
        if str(task_id) in tasks:
            raise TaskError(f"{source}: two tasks have the task_id {task_id!r}", cure="Give each task an id of its own")
        tasks[str(task_id)] = Task(str(task_id), record)
    if not tasks:
        raise TaskError(f"{source} holds no tasks")
    return tuple(tasks.values())


def load_demonstrations(source: str, folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The conversations of a .jsonl file or "module:function": {"messages": [...], "tools": [...]} each.

    Raises:
        TaskError: the source cannot be read or is empty, or a conversation has no assistant message to learn from.
    """
    conversations = tuple(_records(source, folder))
    for position, conversation in enumerate(conversations):
        messages = conversation.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
            raise TaskError(f'{source}: demonstration {position} has no "messages" list of chat messages')
        if not any(message["role"] == "assistant" for message in messages):
            raise TaskError(f"{source}: demonstration {position} has no assistant message to learn from")
    if not conversations:
        raise TaskError(f"{source} holds no demonstrations")
    return conversations


def digest(tasks: Sequence[Task]) -> str:
    """A short fingerprint of tasks and their order, to notice that a resumed run would see others."""
    text = json.dumps([[task.task_id, task.data] for task in tasks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _records(source: str, folder: Path) -> Iterable[dict[str, Any]]:
    raw = _from_file(folder / source) if source.endswith(".jsonl") else _from_function(source, folder)
    for position, record in raw:
        if not isinstance(record, Mapping):
            raise TaskError(f"{source}: entry {position} is {type(record).__name__}, not a JSON object")
        try:
            yield json.loads(json.dumps(record, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TaskError(f"{source}: entry {position} cannot be written as JSON: {error}") from error


def _from_file(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except ValueError as error:
            raise TaskError(f"{path}, line {number} is not JSON: {error}") from error


def _from_function(source: str, folder: Path) -> Iterable[tuple[str, Any]]:
    function = load_function(source, folder)
    try:
        records = list(function())
    except Exception as error:  # the user's code may raise anything; it is reported as theirs
        raise TaskError(f"{source} raised {type(error).__name__}: {error}") from error
    return ((str(position), record) for position, record in enumerate(records))
