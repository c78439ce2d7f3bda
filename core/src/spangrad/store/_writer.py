"""The one thread that writes, committing together whatever waits.

A commit costs one wait for the disk however much is in it. While the thread waits, further writes queue; the next commit takes
them all. One agent alone thus pays one wait per call, and two hundred at once share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from queue import SimpleQueue

from sqlalchemy import Engine, Executable

from spangrad.errors import StoreError
from spangrad.store._rows import Row

Step = tuple[Executable, Sequence[Row]]
"""A statement and the rows it is executed with; nothing is executed for no rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Statements that are committed together or not at all."""

    doing: str
    """What it does, for the error message, as in "save call c1"."""
    steps: tuple[Step, ...]
    joins: bool = False
    """Whether its steps may be merged with those of a neighbour that has the same statements (inserts only)."""
    done: Future[None] = field(default_factory=Future)
    """Set when the commit is on the disk."""


class Writer:
    """Commits writes in the order they were submitted.

    Args:
        engine: its transactions begin with the write lock; the writer's own from now on.
        failure: makes the error that is told of an exception and what was being done.
        hopeless: whether after an exception other writes need not be tried.
    """

    def __init__(
        self, engine: Engine, *, failure: Callable[[Exception, str], StoreError], hopeless: Callable[[Exception], bool]
    ) -> None:
        self._engine = engine
        self._failure = failure
        self._hopeless = hopeless
        self._queue: SimpleQueue[Write | None] = SimpleQueue()
        # A daemon, so that a program that forgot to close its store still ends; the store's finalizer stops it first.
        self._thread = threading.Thread(target=self._run, name="spangrad-store", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> Future[None]:
        """Queues a write. The future cannot be cancelled: who stops waiting does not undo what happened."""
        write.done.set_running_or_notify_cancel()
        self._queue.put(write)
        return write.done

    def is_current_thread(self) -> bool:
        """Whether the caller is the writing thread itself, which cannot wait for its own work."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Commits what is queued, ends the thread and lets go of the engine. Nothing may be submitted any more."""
        self._queue.put(None)
        if not self.is_current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._commit_waiting():
            pass
        self._engine.dispose()

    def _commit_waiting(self) -> bool:
        """Waits for writes and commits them; while it waits it holds on to none that were committed. False at the end."""
        waiting = [self._queue.get()]
        while not self._queue.empty():  # this thread alone takes from the queue, so `get` does not block
            waiting.append(self._queue.get())
        self._commit([write for write in waiting if write is not None])
        return None not in waiting

    def _commit(self, writes: Sequence[Write]) -> None:
        """Commits `writes` in one transaction; when that fails for the sake of one of them, each in its own."""
        if not writes:
            return
        try:
            with self._engine.begin() as connection:
                for statement, rows in _joined(writes):
                    connection.execute(statement, rows)
        except Exception as exc:  # noqa: BLE001 - whatever it is goes to those who wait; the thread must live on
            if len(writes) > 1 and not self._hopeless(exc):
                for write in writes:
                    self._commit([write])
                return
            for write in writes:
                error = self._failure(exc, write.doing)
                error.__cause__ = exc
                write.done.set_exception(error)
        else:
            for write in writes:
                write.done.set_result(None)


def _joined(writes: Sequence[Write]) -> Iterator[Step]:
    """The steps of all writes in order, those of neighbours that join merged into one step per statement."""
    for _, neighbours in groupby(writes, key=_likeness):
        for steps in zip(*(write.steps for write in neighbours), strict=True):
            rows = [row for _, rows in steps for row in rows]
            if rows:
                yield steps[0][0], rows


def _likeness(write: Write) -> tuple[int, ...]:
    """Equal for writes whose steps may be merged."""
    return tuple(id(statement) for statement, _ in write.steps) if write.joins else (id(write),)
