"""Spans from OTLP/JSON, the form any OpenTelemetry exporter can send over HTTP.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: lowerCamelCase names, ids as hexadecimal text, 64-bit
integers as decimal text (numbers are taken too), enumerations as numbers (names are taken too), unknown names ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    raise NotImplementedError
