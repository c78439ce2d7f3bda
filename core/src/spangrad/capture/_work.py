"""Spans for a framework's nested pieces of work: agents, nodes, tools, handoffs.

Frameworks name their work by ids of their own and tell its beginning and end in callbacks that may run in other contexts.
So parents are looked up by id here, never taken from the context a callback happens to run in.
"""

from __future__ import annotations

import json
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
            key: the framework's id of it.
            name: of the agent, node or tool; the span is called "OPERATION NAME".
            operation: GenAI's word (`invoke_agent`, `execute_tool`), or `semconv.NODE_OPERATION`, `semconv.HANDOFF_OPERATION`.
            parent: the framework's id of the work it is part of. Without one, or when that is unknown here, the innermost
                work of another framework is the parent.
            agent: the agent this work is, or belongs to; the parent's agent when None.
            attributes: further attributes; values that OpenTelemetry does not take become JSON text, and None is left out.
        """
        scope = current_scope()
        if scope is None:
            return
        above = self._open.get(parent) if parent is not None else None
        site = None if above is not None else current_site()
        outer = above.span if above is not None else site.span if site is not None else None
        agent = agent or (above.agent if above is not None else site.agent if site is not None else None)
        # An empty context is given where nothing is above: what the program itself has under way is not ours to join.
        context = Context() if outer is None else set_span_in_context(outer, Context())
        span = cast("Span", self._tracer.start_span(f"{operation} {name}", context))
        stamp = {semconv.ROLLOUT_ID: scope.rollout_id, semconv.ATTEMPT: scope.attempt, semconv.TASK_ID: scope.task_id}
        named = {semconv.OPERATION_NAME: operation, semconv.AGENT_NAME: agent}
        _set(span, {**stamp, **named, **(attributes or {})})
        with self._lock:
            self._open[key] = _Open(span, agent, (scope.rollout_id, scope.attempt))

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
        if work is None:
            return
        _set(work.span, attributes or {})
        if error is not None:
            kind = type(error).__name__ if isinstance(error, BaseException) else "error"
            work.span.set_attribute(semconv.ERROR_TYPE, kind)
            work.span.set_status(Status(StatusCode.ERROR, str(error)))
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

    @property
    def _tracer(self) -> Tracer:
        return tracer_provider().get_tracer(self._library)


def end_work(scope: RolloutScope) -> None:
    """Ends whatever any framework has left open of a rollout that is over."""
    for recorder in list(_recorders):
        recorder.end_rollout(scope.rollout_id, scope.attempt)


def _set(span: Span, attributes: Mapping[str, Any]) -> None:
    span.set_attributes({name: _value(value) for name, value in attributes.items() if value is not None})


def _value(value: Any) -> str | bool | int | float:
    """A value OpenTelemetry takes: text, numbers and booleans stay, all else becomes JSON text."""
    return value if isinstance(value, str | bool | int | float) else json.dumps(value, ensure_ascii=False, default=str)
