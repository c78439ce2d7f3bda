"""Reading tasks and demonstrations: from a JSON Lines file or from the user's own function."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spangrad.errors import TaskError
from spangrad.rollouts import Task, is_async, load_function, problem_of


def load_tasks(source: str, folder: Path, *, key: str = "tasks") -> tuple[Task, ...]:
    """The tasks of a .jsonl file or "module:function".

    A task is a JSON object; its `task_id` (text or a whole number) names it, and where it has none its position does.

    Args:
        source: where they come from.
        folder: where files and modules are looked for.
        key: the setting that names the source, for messages.

    Raises:
        TaskError: the source cannot be read, is empty, or holds something that is not a JSON object, or one id twice.
    """
    origin = _Source(source, folder, key)
    tasks: dict[str, Task] = {}
    for position, (place, record) in enumerate(origin.records()):
        task_id = record.get("task_id", position)
        if isinstance(task_id, bool) or not isinstance(task_id, str | int):
            raise origin.error(f"{place} has a task_id that is neither text nor a whole number: {task_id!r}")
        if str(task_id) in tasks:
            raise origin.error(f"two tasks have the task_id {task_id!r}", cure="Give each task an id of its own")
        try:
            tasks[str(task_id)] = Task(str(task_id), record)
        except TaskError as error:
            raise origin.error(f"{place}: {error.what}", cure=error.cure) from error
    if not tasks:
        raise origin.error("holds no tasks")
    return tuple(tasks.values())


def load_demonstrations(
    source: str, folder: Path, *, policies: Collection[str] = (), key: str = "warm_start.demonstrations"
) -> tuple[Mapping[str, Any], ...]:
    """The conversations of a .jsonl file or "module:function": {"messages": [...], "tools": [...]} each.

    Args:
        source: as for `load_tasks`.
        folder: likewise.
        policies: names that a conversation's "policy" may have.
        key: as for `load_tasks`.

    Raises:
        TaskError: the source cannot be read or is empty, or a conversation has no assistant message to learn from, or is
            for a policy that there is not.
    """
    origin = _Source(source, folder, key)
    conversations = []
    for place, conversation in origin.records():
        messages = conversation.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
            raise origin.error(f'{place} has no "messages" list of chat messages')
        if not any(message["role"] == "assistant" for message in messages):
            raise origin.error(f"{place} has no assistant message to learn from")
        if "policy" in conversation and conversation["policy"] not in policies:
            known = ", ".join(map(repr, policies))
            raise origin.error(f"{place} is for the policy {conversation['policy']!r}, and there are {known}")
        conversations.append(conversation)
    if not conversations:
        raise origin.error("holds no demonstrations")
    return tuple(conversations)


def digest(tasks: Sequence[Task]) -> str:
    """A short fingerprint of tasks and their order, to notice that a resumed run would see others."""
    text = json.dumps([[task.task_id, task.data] for task in tasks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parsed(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, or nested so deeply that Python cannot read it.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@dataclass(frozen=True, slots=True)
class _Source:
    """Where records come from, and which setting says so."""

    spec: str
    folder: Path
    key: str

    def error(self, what: str, *, cure: str = "") -> TaskError:
        """An error of this source."""
        return TaskError(f"{self.key}: {self.spec}: {what}", cure=cure)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Place ("line 3", "entry 0") and content of each record, checked to be a JSON object that can be sent around."""
        for place, record in self._from_file() if self.spec.endswith(".jsonl") else self._from_function():
            if not isinstance(record, Mapping):
                raise self.error(f"{place} is {type(record).__name__}, not a JSON object")
            if (problem := problem_of(record)) is not None:
                raise self.error(f"{place} cannot be written as JSON: {problem}")
            yield place, json.loads(json.dumps(record))

    def _from_file(self) -> Iterator[tuple[str, Any]]:
        path = self.folder / self.spec
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{self.key}: {path} cannot be read: {error}") from error
        # Not splitlines(): JSON strings may hold the other characters that it takes for the end of a line.
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", parsed(line)
            except ValueError as error:
                raise self.error(f"line {number} is not JSON: {error}") from error

    def _from_function(self) -> Iterator[tuple[str, Any]]:
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.spec):
            raise self.error('is neither a .jsonl file nor of the form "module:function"')
        function = load_function(self.spec, self.folder, noun=f"{self.key} function", error=TaskError)
        for position, record in enumerate(self._called(function)):
            yield f"entry {position}", record

    def _called(self, function: Callable[..., Any]) -> list[Any]:
        if is_async(function) or inspect.isasyncgenfunction(inspect.unwrap(function)):
            raise self.error("the function is async", cure="Write it as a plain `def` that returns the list")
        try:
            given = function()
            records = None if inspect.iscoroutine(given) else list(given)
        except (Exception, SystemExit) as error:  # the user's code may raise anything; it is reported as theirs
            raise self.error(f"the function raised {type(error).__name__}: {error}") from error
        for record in records or ():
            if inspect.iscoroutine(record):
                for one in records or ():
                    if inspect.iscoroutine(one):
                        one.close()  # as below
                raise self.error("the function returns coroutines", cure="Let it return the tasks themselves")
        if records is None:
            given.close()  # else Python warns that it was never awaited
            raise self.error("the function returns a coroutine", cure="Let it return the list itself")
        return records
