"""Spans as an OTLP/JSON trace request, the form in which one process sends them to another.

Follows the JSON mapping of the OpenTelemetry protocol (opentelemetry-proto 1.x): ids in hexadecimal, 64-bit integers as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from spangrad.spans import Span, SpanEvent

_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_STATUSES: Final = {"unset": 0, "ok": 1, "error": 2}
_SCALARS: Final = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}


def to_otlp_json(spans: Iterable[Span]) -> dict[str, Any]:
    """One ExportTraceServiceRequest with these finished spans."""
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_scope.setdefault(span.scope, []).append(_span(span))
    scopes = [{"scope": {"name": name}, "spans": rows} for name, rows in by_scope.items()]
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": scopes}]}


def _span(span: Span) -> dict[str, Any]:
    row: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns or 0),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "status": {"code": _STATUSES[span.status], "message": span.status_message},
    }
    if span.parent_id is not None:
        row["parentSpanId"] = span.parent_id
    return row


def _event(event: SpanEvent) -> dict[str, Any]:
    return {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": _attributes(event.attributes)}


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    for kind, field in _SCALARS.items():
        if type(value) is kind:
            return {field: str(value) if kind is int else value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {}
