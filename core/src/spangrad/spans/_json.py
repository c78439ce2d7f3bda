"""A span as one JSON object, for the store and for exports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from spangrad.errors import SpanError
from spangrad.spans._attributes import plain_attributes
from spangrad.spans._span import Span

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def span_to_json(span: Span) -> dict[str, Any]:
    """The span's fields under their own names; `span_from_json` restores it exactly."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "rollout_id": span.rollout_id,
        "attempt": span.attempt,
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "status_message": span.status_message,
        "attributes": plain_attributes(span.attributes),
        "events": [
            {"name": event.name, "time_ns": event.time_ns, "attributes": plain_attributes(event.attributes)}
            for event in span.events
        ],
        "scope": span.scope,
    }


@cache
def _adapter() -> TypeAdapter[Span]:
    # Only programs that read spans back spend a tenth of a second on importing pydantic and building this.
    from pydantic import TypeAdapter  # noqa: PLC0415 - as said above

    return TypeAdapter(Span)


def span_from_json(data: Mapping[str, Any]) -> Span:
    """Reads what `span_to_json` wrote.

    Raises:
        SpanError: a field is missing or of the wrong type.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - see `_adapter`

    from spangrad.spans._complaint import complaint  # noqa: PLC0415 - see `_adapter`

    try:
        return _adapter().validate_python(data)
    except ValidationError as exc:
        raise SpanError(f"Not a span: {complaint(exc)}", cure="Write spans with `span_to_json`") from exc
