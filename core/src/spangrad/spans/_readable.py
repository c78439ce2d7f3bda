"""Spans from the OpenTelemetry SDK of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spangrad.errors import SpanError
from spangrad.spans._attributes import owner, plain_attributes
from spangrad.spans._span import Span, SpanEvent, SpanKind, SpanStatus

if TYPE_CHECKING:  # the SDK's spans are read without importing the SDK
    from opentelemetry.sdk.trace import ReadableSpan

_KINDS: Final[Mapping[str, SpanKind]] = {
    "INTERNAL": "internal",
    "SERVER": "server",
    "CLIENT": "client",
    "PRODUCER": "producer",
    "CONSUMER": "consumer",
}
_STATUSES: Final[Mapping[str, SpanStatus]] = {"UNSET": "unset", "OK": "ok", "ERROR": "error"}


def from_readable(span: ReadableSpan) -> Span:
    """The span as an SDK's span processor or exporter hands it over.

    Args:
        span: a span, ended or not; later changes to it do not show in the result.

    Raises:
        SpanError: it has no span context, so nothing identifies it.
    """
    context = span.get_span_context()
    if context is None or not context.is_valid:
        raise SpanError(
            f"The span {span.name!r} has no trace id and span id", cure="Make spans with a tracer, not by hand"
        )
    attributes = plain_attributes(span.attributes)
    rollout_id, attempt = owner(attributes, span.resource.attributes)
    parent = span.parent
    scope = span.instrumentation_scope
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{parent.span_id:016x}" if parent is not None and parent.is_valid else None,
        rollout_id=rollout_id,
        attempt=attempt,
        name=span.name,
        kind=_KINDS[span.kind.name],
        start_ns=span.start_time or 0,
        end_ns=span.end_time,
        status=_STATUSES[span.status.status_code.name],
        status_message=span.status.description or "",
        attributes=attributes,
        events=tuple(SpanEvent(e.name, e.timestamp, plain_attributes(e.attributes)) for e in span.events),
        scope=scope.name if scope is not None else "",
    )
