"""Spans for a framework's nested pieces of work: agents, nodes, tools, handoffs.

Frameworks name their work by ids of their own and tell its beginning and end in callbacks that may run in other contexts.
So parents are looked up by id here, never taken from the context a callback happens to run in.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

from spangrad import semconv
from spangrad.capture._scope import RolloutScope, current_scope
from spangrad.capture._site import CallSite, current_site
from spangrad.capture._tracing import tracer_provider

_recorders: Final[weakref.WeakSet[WorkRecorder]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Open:
    """A piece of work under way."""

    span: Span
    agent: str | None
    rollout: tuple[str, int]
    process: int
    """The one it began in: a forked copy of that process knows of the work, but it is not the copy's to end."""


class WorkRecorder:
    """Records the pieces of work of one framework, inside rollouts only: outside of them nothing is kept.

    Safe to call from any thread or task, and in any order: an end without a beginning, or a second one, does nothing.

    Args:
        library: instrumentation scope of the spans, such as "spangrad.langchain".
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Open] = {}
        _recorders.add(self)

    def begin(
        self,
        key: Hashable,
        name: str,
        *,
        operation: str,
        parent: Hashable | None = None,
        agent: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Begins a piece of work.

        Args:
            key: the framework's id of it. Work of that id that is still open is ended first, as incomplete.
            name: of the agent, node or tool; the span is called "OPERATION NAME".
            operation: GenAI's word (`invoke_agent`, `execute_tool`), or `semconv.NODE_OPERATION`, `semconv.HANDOFF_OPERATION`.
            parent: the framework's id of the work it is part of. Without one, or when that is unknown in this rollout, the
                innermost work of another framework is the parent.
            agent: the agent this work is, or belongs to; the parent's agent when None.
            attributes: further attributes; values that OpenTelemetry does not take become JSON text, and None is left out.
        """
        scope = current_scope()
        if scope is None:
            return
        rollout = (scope.rollout_id, scope.attempt)
        above = self._site_above(parent, rollout)
        # An empty context is given where nothing is above: what the program itself has under way is not ours to join.
        context = Context() if above is None else set_span_in_context(above.span, Context())
        agent = agent or (above.agent if above is not None else None)
        span = cast("Span", self._tracer.start_span(f"{operation} {name}", context))
        stamp = {semconv.ROLLOUT_ID: scope.rollout_id, semconv.ATTEMPT: scope.attempt, semconv.TASK_ID: scope.task_id}
        named = {semconv.OPERATION_NAME: operation, semconv.AGENT_NAME: agent}
        _set(span, {**stamp, **named, **(attributes or {})})
        self.end(key, attributes={semconv.INCOMPLETE: True})
        with self._lock:
            self._open[key] = _Open(span, agent, rollout, os.getpid())

    def end(
        self, key: Hashable, *, error: BaseException | str | None = None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Ends a piece of work.

        Args:
            key: the framework's id of it.
            error: what went wrong, if anything; sets the span's status and `error.type`.
            attributes: as in `begin`.
        """
        with self._lock:
            work = self._open.pop(key, None)
        if work is None or work.process != os.getpid():
            return
        _set(work.span, attributes or {})
        if error is not None:
            kind = type(error).__name__ if isinstance(error, BaseException) else "error"
            work.span.set_attribute(semconv.ERROR_TYPE, kind)
            work.span.set_status(Status(StatusCode.ERROR, str(_value(_text(error)))))
        work.span.end()

    def site(self, key: Hashable) -> CallSite | None:
        """The piece of work as a call site; None when it is not under way."""
        work = self._open.get(key)
        return None if work is None else CallSite(work.span, work.agent)

    def end_rollout(self, rollout_id: str, attempt: int) -> None:
        """Ends what a rollout has left open (a stream nobody read to its end), marked as incomplete."""
        with self._lock:
            left = [key for key, work in self._open.items() if work.rollout == (rollout_id, attempt)]
        for key in reversed(left):
            self.end(key, attributes={semconv.INCOMPLETE: True})

    def forked(self) -> None:
        """In a forked copy of the process: the lock may be one that a thread held which the copy does not have."""
        self._lock = threading.Lock()

    def _site_above(self, parent: Hashable | None, rollout: tuple[str, int]) -> CallSite | None:
        above = self._open.get(parent) if parent is not None else None
        if above is not None and above.rollout == rollout:
            return CallSite(above.span, above.agent)
        return current_site()

    @property
    def _tracer(self) -> Tracer:
        return tracer_provider().get_tracer(self._library)


def end_work(scope: RolloutScope) -> None:
    """Ends whatever any framework has left open of a rollout that is over."""
    for recorder in list(_recorders):
        recorder.end_rollout(scope.rollout_id, scope.attempt)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _set(span: Span, attributes: Mapping[str, Any]) -> None:
    span.set_attributes({name: _value(value) for name, value in attributes.items() if value is not None})


def _value(value: Any) -> str | bool | int | float:
    """A value OpenTelemetry takes: text, numbers and booleans stay, all else becomes JSON text."""
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else _json(value)
    # Half of a surrogate pair cannot be written anywhere as UTF-8; a model's tokens, put together, may end in one.
    return text if text.isascii() else text.encode(errors="replace").decode()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except Exception:  # noqa: BLE001 - the program's objects may raise anything when made text, and must not be run aground by us
        return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - as above
        return f"<{type(value).__name__} whose text raises {type(error).__name__}>"
