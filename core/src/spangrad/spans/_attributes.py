"""Attribute values made plain, and the two attributes that say whose span it is."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from spangrad import semconv


def plain_value(value: Any) -> Any:
    """A JSON-able copy of an attribute value.

    Bytes become base64 text, sequences and sets lists, mappings dicts; anything JSON has no word for becomes its `str()`.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | AbstractSet):
        return [plain_value(item) for item in value]
    return str(value)


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A JSON-able copy of a span's attributes; empty for None."""
    return {str(key): plain_value(value) for key, value in (attributes or {}).items()}


def owner(attributes: Mapping[str, Any], resource: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Rollout id and attempt that a span names; None for whichever is missing or of the wrong type.

    What the span does not say, its resource may: a process can name its rollout once, in OTEL_RESOURCE_ATTRIBUTES. An
    attempt that came as text ("2") is read as the number, since those only hold text.
    """
    rollout_id = attributes.get(semconv.ROLLOUT_ID, resource.get(semconv.ROLLOUT_ID))
    attempt = attributes.get(semconv.ATTEMPT, resource.get(semconv.ATTEMPT))
    if isinstance(attempt, str) and attempt.isascii() and attempt.isdigit():
        attempt = int(attempt)
    return (
        rollout_id if isinstance(rollout_id, str) and rollout_id else None,
        attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else None,
    )
