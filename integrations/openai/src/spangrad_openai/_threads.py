"""Carries the rollout's scope into plain threads, timers and executors.

Tasks and `asyncio.to_thread` copy the context by themselves. `threading.Thread` and `run_in_executor` do not: there the
scope travels in the OpenTelemetry context, which opentelemetry-instrumentation-threading hands over.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import wrapt
from opentelemetry import context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from spangrad.capture import current_scope
from spangrad.plugins import Replacements

_WRAPPED: tuple[tuple[type, str], ...] = (
    (threading.Thread, "start"),
    (threading.Thread, "run"),
    (threading.Timer, "start"),
    (threading.Timer, "run"),
    (ThreadPoolExecutor, "submit"),
)


class ThreadPatch:
    """The instrumentor of threading, switched on unless the program has done so itself, and what it misses."""

    def __init__(self) -> None:
        self.state = "not attached"
        self._instrumentor: ThreadingInstrumentor | None = None
        self._active = False
        self._start = Replacements()
        self._instrumented = Replacements()

    def apply(self) -> None:
        """Switches it on."""
        # What lies under somebody else's wrapper since the last time is still ours and only has to wake up.
        if (threading.Thread, "start") not in self._start:
            self._start.make(threading.Thread, "start", self._carrying(threading.Thread.start))
        self._active = True
        instrumentor = ThreadingInstrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            self.state = "carried by the program's own instrumentation of threading"
            return
        before = [(owner, name, vars(owner).get(name)) for owner, name in _WRAPPED]
        instrumentor.instrument()
        for owner, name, own in before:
            self._instrumented.note(owner, name, own, inherited=own is None)
        self._instrumentor = instrumentor
        self.state = "carried"

    def revert(self) -> None:
        """Switches it off if `apply` switched it on."""
        if self._instrumentor is not None:
            self._instrumented.undo_around(self._instrumentor.uninstrument)
        self._active = False
        self._start.undo()
        self._instrumentor = None
        self.state = "not attached"

    def _carrying(self, original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        """`Thread.start` that also hands the context to a rollout's threads that have a `run` of their own.

        The instrumentor wraps `Thread.run`, which a subclass that overrides it never reaches.
        """

        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if self._active and current_scope() is not None and not _runs_instrumented(thread):
                _give_context(thread)
            original(thread)

        return start


def _runs_instrumented(thread: threading.Thread) -> bool:
    run = inspect.getattr_static(type(thread), "run")
    return "run" not in vars(thread) and isinstance(run, wrapt.FunctionWrapper)


def _give_context(thread: threading.Thread) -> None:
    current, run, before = context.get_current(), thread.run, vars(thread).get("run")

    def run_in_context() -> None:
        # The thread keeps no reference to itself through this function once it has begun.
        if before is None:
            del vars(thread)["run"]
        else:
            vars(thread)["run"] = before
        token = context.attach(current)
        try:
            run()
        finally:
            context.detach(token)

    vars(thread)["run"] = run_in_context
