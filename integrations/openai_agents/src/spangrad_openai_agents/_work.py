"""The work that the SDK's spans tell of, recorded as spans of ours.

The SDK makes span objects for everything, whether its tracing is on or not: with tracing off they are no-ops that carry the
same data. So what is recorded here does not depend on tracing, nor on which processors are registered.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from agents.tracing.scope import Scope
from agents.tracing.spans import NoOpSpan, Span, SpanError

from spangrad import semconv
from spangrad.capture import CallSite, WorkRecorder, current_scope
from spangrad_openai_agents._pieces import error_text, outcome_of, piece_of

_MASK: Final = "Agent run"
"""A no-op span of this name hides the caller's span where a run has its tracing disabled. It stands for no work."""


_log = logging.getLogger("spangrad.openai_agents")


class _Place(NamedTuple):
    """Where a span lies in the work."""

    key: str | None
    """Of the piece of work it is, or else is part of; None when of none."""
    own: bool
    """It is that piece of work."""
    handled: int
    """`id` of the exception that was being handled when it began."""


_NOWHERE: Final = _Place(None, own=False, handled=0)


class SpanWork:
    """Follows spans from their start to their end, inside rollouts only. Safe to call from any thread, and more than once."""

    def __init__(self) -> None:
        self._recorder = WorkRecorder("spangrad.openai_agents")
        self._places: WeakKeyDictionary[Span[Any], _Place] = WeakKeyDictionary()
        self._by_id: WeakValueDictionary[str, Span[Any]] = WeakValueDictionary()
        self._errors: WeakKeyDictionary[Span[Any], SpanError] = WeakKeyDictionary()

    def started(self, span: Span[Any]) -> None:
        """A span is about to start; to be told before it becomes the current one."""
        if current_scope() is None or span in self._places:
            return
        parent = self._place(self._parent(span)).key
        silent = isinstance(span, NoOpSpan)
        masks = silent and span.span_data.type == "custom" and span.span_data.name == _MASK
        piece = None if masks else piece_of(span.span_data)
        if not silent:
            self._by_id[span.span_id] = span
        if piece is None:
            self._places[span] = _Place(parent, own=False, handled=0)
            return
        key = uuid.uuid4().hex if silent else span.span_id
        self._places[span] = _Place(key, own=True, handled=id(sys.exception()))
        self._recorder.begin(
            key,
            piece.name,
            operation=piece.operation,
            parent=parent,
            agent=piece.agent,
            attributes={**piece.attributes, semconv.FRAMEWORK_RUN_ID: key},
        )

    def failed(self, span: Span[Any], error: SpanError) -> None:
        """A no-op span, which keeps no errors, was given one."""
        if self._place(span).own:
            self._errors[span] = error

    def finished(self, span: Span[Any]) -> None:
        """A span is over."""
        key, own, handled = self._place(span)
        if key is None or not own:
            return
        data = span.span_data
        site = self._recorder.site(key)
        if data.type == "handoff" and site is not None:  # where it goes is known only now
            site.span.update_name(f"{semconv.HANDOFF_OPERATION} {data.to_agent}")
        error = error_text(span.error or self._errors.get(span)) or _passing(handled)
        self._recorder.end(key, error=error, attributes=outcome_of(data))

    def called(self, tool_call_id: str) -> None:
        """The id of the call that the tool running here answers."""
        span = Scope.get_current_span()
        if span is not None and span.span_data.type == "function" and self._place(span).own:
            site = self.site()
            if site is not None:
                site.span.set_attribute(semconv.TOOL_CALL_ID, tool_call_id)

    def knows(self, span: Span[Any]) -> bool:
        """Whether the span was started inside a rollout."""
        return span in self._places

    def site(self) -> CallSite | None:
        """The innermost piece of work the running code is in."""
        key = self._place(Scope.get_current_span()).key
        return None if key is None else self._recorder.site(key)

    def _place(self, span: Span[Any] | None) -> _Place:
        return _NOWHERE if span is None else self._places.get(span, _NOWHERE)

    def _parent(self, span: Span[Any]) -> Span[Any] | None:
        """No-op spans name no parent: there it is the current span."""
        current = Scope.get_current_span()
        if isinstance(span, NoOpSpan) or (current is not None and current.span_id == span.parent_id):
            return current
        return self._by_id.get(span.parent_id) if span.parent_id is not None else None


WORK: Final = SpanWork()
"""The only one in the process, so that a span told of twice, by a hook and by a processor, is recorded once."""


def _passing(handled: int) -> Exception | None:
    """The exception by which a piece of work ends; the SDK does not write all of them onto its spans.

    Args:
        handled: `id` of the one that was being handled when the work began, which has nothing to do with it.
    """
    error = sys.exception()
    return error if isinstance(error, Exception) and id(error) != handled else None


def record(about: Callable[..., None], *facts: Any) -> None:
    """Tells `WORK` of something, and never raises: what goes wrong here must not become the program's own trouble."""
    try:
        about(*facts)
    except Exception:  # noqa: BLE001 - a tool's result, for one, may raise anything when it is written out
        _log.exception("A piece of an agent's work could not be recorded")
