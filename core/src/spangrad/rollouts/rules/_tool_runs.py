"""The tools a rollout ran, out of its spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spangrad import semconv
from spangrad.rollouts.rules._rule import Occurrence
from spangrad.rollouts.rules._work import Work, text_of
from spangrad.spans import Span

_EXCEPTION: Final = "exception"
"""Name of the event by which OpenTelemetry records an exception."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool."""

    span: Span
    occurrence: Occurrence

    @property
    def failed(self) -> bool:
        """Whether its status is ERROR, or it has an exception."""
        return self.span.status == "error" or any(event.name == _EXCEPTION for event in self.span.events)

    @property
    def complete(self) -> bool:
        """Whether it ended by itself; not when its rollout was over first."""
        return self.span.end_ns is not None and self.span.attributes.get(semconv.INCOMPLETE) is not True

    @property
    def seconds(self) -> float:
        """How long it took; 0 while it is open."""
        return 0.0 if self.span.end_ns is None else (self.span.end_ns - self.span.start_ns) / 1e9


def tool_runs(work: Work) -> list[ToolRun]:
    """In the order they began. A tool's span inside a span of the same tool call is no run of its own: two libraries saw one."""
    return [
        ToolRun(span, Occurrence(work.call_of(span), work.agent_of(span), text_of(span, semconv.TOOL_NAME)))
        for span in work.spans
        if is_tool(span) and not _seen_above(work, span)
    ]


def is_tool(span: Span) -> bool:
    """Whether the span stands for a run of a tool."""
    operation = text_of(span, semconv.OPERATION_NAME)
    if operation is not None:
        return operation == semconv.TOOL_OPERATION
    return text_of(span, semconv.TOOL_NAME) is not None


def _seen_above(work: Work, span: Span) -> bool:
    tool_call_id = text_of(span, semconv.TOOL_CALL_ID)
    return tool_call_id is not None and any(
        above is not span and is_tool(above) and text_of(above, semconv.TOOL_CALL_ID) == tool_call_id
        for above in work.upwards(span)
    )
