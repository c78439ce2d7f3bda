"""A span as one JSON object, for the store and for exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spangrad.spans._span import Span


def span_to_json(span: Span) -> dict[str, Any]:
    """The span's fields under their own names; `span_from_json` restores it exactly."""
    raise NotImplementedError


def span_from_json(data: Mapping[str, Any]) -> Span:
    """Reads what `span_to_json` wrote.

    Raises:
        SpanError: a field is missing or of the wrong type.
    """
    raise NotImplementedError
