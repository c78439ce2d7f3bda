"""Finding out which of the calls that share an event loop keeps it from taking turns.

Code that blocks in a coroutine stops every other coroutine of its loop, and their time limits strike though they did nothing
wrong. So a thread asks the loop for a turn again and again; while it gets none and one task goes on and on, the time is charged to
that task's call, and credited to all others. Many tasks that each take a little are a busy loop, and nobody's fault.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, TypeVar

from spangrad.rollouts._failure import users_line

T = TypeVar("T")

_GLANCE: Final = 0.1
"""Seconds between two questions, and seconds without an answer after which somebody is charged."""
_SHARE: Final = 0.1
"""Of its time limit that a call must have lost to others before they are to blame that it ran out of time."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Code that kept a loop from taking turns."""

    who: str
    """Whose, such as "the agent of rollout r"."""
    place: str
    """FILE, line N in the user's own code; empty where none is to be seen."""

    def __str__(self) -> str:
        return f"{self.who} ({self.place})" if self.place else self.who


@dataclass(eq=False)
class LoopCall:
    """A call on a loop, and what it cost the others and lost to them."""

    name: str
    lost: dict[Blocking, float] = field(default_factory=dict)
    """Seconds in which others blocked the loop."""
    cost: dict[Blocking, float] = field(default_factory=dict)
    """Seconds in which it blocked the loop itself."""

    def victim_of(self, limit: float) -> Blocking | None:
        """Who is to blame that the call ran out of its `limit` of seconds; None where it is to blame itself."""
        lost = sum(self.lost.values())
        return self.worst if lost >= _SHARE * limit and lost > sum(self.cost.values()) else None

    def culprit(self, limit: float) -> Blocking | None:
        """Where the call blocked the loop for long, measured by its limit; None where it did not."""
        return max(self.cost, key=self.cost.__getitem__, default=None) if self._costly(limit) else None

    @property
    def worst(self) -> Blocking | None:
        """Who it lost the most time to."""
        return max(self.lost, key=self.lost.__getitem__, default=None)

    def _costly(self, limit: float) -> bool:
        return sum(self.cost.values()) >= _SHARE * limit


_call: contextvars.ContextVar[LoopCall | None] = contextvars.ContextVar("spangrad_loop_call", default=None)
"""Which call the running task is part of; tasks that user code starts inherit it."""


class LoopWatch:
    """Watches a loop that runs in another thread, until `end`.

    Args:
        loop: the loop; tasks made on it from now on are known by the call that made them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._calls: set[LoopCall] = set()
        self._owners: weakref.WeakKeyDictionary[asyncio.Task[Any], LoopCall] = weakref.WeakKeyDictionary()
        self._ended = threading.Event()
        loop.set_task_factory(self._task)

    def watch(self, thread: int) -> None:
        """Begins; `thread` is the identifier of the loop's."""
        threading.Thread(target=self._watch, args=(thread,), name="spangrad-watch", daemon=True).start()

    def end(self) -> None:
        """Watches no more."""
        self._ended.set()

    def begin_call(self, name: str, start: Callable[[], T]) -> tuple[LoopCall, T]:
        """Runs `start`, which hands a coroutine to the loop, as the beginning of a call."""
        call = LoopCall(name)
        with self._lock:
            self._calls.add(call)
        context = contextvars.copy_context()
        context.run(_call.set, call)
        return call, context.run(start)

    def end_call(self, call: LoopCall) -> None:
        """Counts for the call no more."""
        with self._lock:
            self._calls.discard(call)

    def blocker(self) -> LoopCall | None:
        """The call whose task is running in this moment."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._owners.get(task)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """Makes a task as asyncio does, and remembers whose it is."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        if (call := _call.get()) is not None:
            self._owners[task] = call
        return task

    def _watch(self, thread: int) -> None:
        while not self._ended.wait(_GLANCE):
            turn = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turn.set)
            except RuntimeError:  # it is closed
                return
            since, suspect = time.monotonic(), None
            while not turn.wait(_GLANCE) and not self._ended.is_set():
                now, running = time.monotonic(), asyncio.current_task(self._loop)
                if running is None or running is not suspect:
                    since, suspect = now, running
                    continue
                self._charge(self._owners.get(running), thread, now - since)
                since = now

    def _charge(self, guilty: LoopCall | None, thread: int, seconds: float) -> None:
        """Charges time in which a task would not end its turn to its call; where that is none's, to nobody."""
        if guilty is None:
            return
        blocking = Blocking(f"{guilty.name[:1].lower()}{guilty.name[1:]}", _place(thread))
        with self._lock:
            guilty.cost[blocking] = guilty.cost.get(blocking, 0.0) + seconds
            for call in self._calls - {guilty}:
                call.lost[blocking] = call.lost.get(blocking, 0.0) + seconds


def _place(thread: int) -> str:
    """Where a thread is, in the user's own code."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - documented; there is no other way to look
    while frame is not None:
        if place := users_line(frame, frame.f_lineno):
            return place
        frame = frame.f_back
    return ""
