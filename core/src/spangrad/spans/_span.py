"""The span as spangrad keeps it: plain values, immutable, independent of the OpenTelemetry SDK that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]
SpanStatus = Literal["unset", "ok", "error"]

Attributes = Mapping[str, Any]
"""JSON-able values by attribute name: text, numbers, booleans, None, lists and mappings of these. Bytes are base64 text."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened while a span was open."""

    name: str
    time_ns: int
    """Nanoseconds since the Unix epoch."""
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work of an agent: an agent, tool, chain or LLM call."""

    trace_id: str
    """32 lower-case hexadecimal digits."""
    span_id: str
    """16 lower-case hexadecimal digits."""
    parent_id: str | None
    """Span id of the parent in the same trace; None for a root."""
    rollout_id: str | None
    """From the attribute `spangrad.rollout.id`; None when the span names no rollout."""
    attempt: int | None
    """From the attribute `spangrad.attempt`."""
    name: str
    kind: SpanKind
    start_ns: int
    """Nanoseconds since the Unix epoch."""
    end_ns: int | None
    """Nanoseconds since the Unix epoch; None while the span is open."""
    status: SpanStatus
    status_message: str
    attributes: Attributes
    events: tuple[SpanEvent, ...]
    scope: str
    """Name of the instrumentation scope (the library whose instrumentation made the span); empty when unknown."""
