"""Spans from the OpenTelemetry SDK of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from spangrad.spans._attributes import owner, plain_attributes
from spangrad.spans._span import Span, SpanEvent, SpanKind, SpanStatus

if TYPE_CHECKING:  # core reads the SDK's spans without importing the SDK
    from opentelemetry.sdk.trace import ReadableSpan


def from_readable(span: ReadableSpan) -> Span:
    """The span as an SDK's span processor or exporter hands it over.

    Args:
        span: a span, ended or not; later changes to it do not show in the result.

    Raises:
        SpanError: it has no span context, so nothing identifies it.
    """
    raise NotImplementedError
