"""Spans from OTLP/JSON, the form any OpenTelemetry exporter can send over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spangrad.errors import SpanError
from spangrad.spans._span import Span


def from_otlp_json(request: Mapping[str, Any]) -> list[Span]:
    """The spans of one ExportTraceServiceRequest, in the order they stand there.

    A resource's `spangrad.*` attributes count for each of its spans that does not carry them itself, so that a process can
    name its rollout once, in OTEL_RESOURCE_ATTRIBUTES.

    Args:
        request: the JSON object of the request's body.

    Raises:
        SpanError: it is no such request; the message names the first wrong fields.
    """
    # Pydantic is only needed here, and a program that never receives spans need not spend a tenth of a second on it.
    from pydantic import ValidationError  # noqa: PLC0415 - as said above

    from spangrad.spans._complaint import complaint  # noqa: PLC0415 - as said above
    from spangrad.spans._otlp_message import OTLPRequest  # noqa: PLC0415 - as said above

    try:
        return OTLPRequest.model_validate(request).spans()
    except ValidationError as exc:
        raise SpanError(
            f"Not an OTLP/JSON trace request: {complaint(exc)}",
            cure='Send {"resourceSpans": [...]} with ids in hexadecimal, as OTLP exporters set to http/json do',
        ) from exc
