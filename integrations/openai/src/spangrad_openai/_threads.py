"""Carries the rollout's scope into plain threads, timers and executors.

Tasks and `asyncio.to_thread` copy the context by themselves. `threading.Thread` and `run_in_executor` do not: there the
scope travels in the OpenTelemetry context, which opentelemetry-instrumentation-threading hands over.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from spangrad_openai._replacement import Replacement, undo_around

_WRAPPED: tuple[tuple[type, str], ...] = (
    (threading.Thread, "start"),
    (threading.Thread, "run"),
    (threading.Timer, "start"),
    (threading.Timer, "run"),
    (ThreadPoolExecutor, "submit"),
)


class ThreadPatch:
    """The instrumentor of threading, switched on unless the program has done so itself."""

    def __init__(self) -> None:
        self.state = "not attached"
        self._instrumentor: ThreadingInstrumentor | None = None
        self._replacements: list[Replacement] = []

    def apply(self) -> None:
        """Switches it on."""
        instrumentor = ThreadingInstrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            self.state = "carried by the program's own instrumentation of threading"
            return
        before = [(owner, name, vars(owner).get(name), getattr(owner, name)) for owner, name in _WRAPPED]
        instrumentor.instrument()
        self._replacements = [
            Replacement(owner, name, own if own is not None else found, vars(owner)[name], inherited=own is None)
            for owner, name, own, found in before
        ]
        self._instrumentor = instrumentor
        self.state = "carried"

    def revert(self) -> None:
        """Switches it off if `apply` switched it on."""
        if self._instrumentor is not None:
            undo_around(self._replacements, self._instrumentor.uninstrument)
        self._instrumentor = None
        self._replacements = []
        self.state = "not attached"
