"""What pydantic found wrong with a span, in one line."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

_SHOWN: Final = 3
"""A thousand spans of one broken exporter are all wrong in the same way."""


def complaint(error: ValidationError) -> str:
    """The first few wrong fields with what is wrong about each, and how many more there are."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}" for item in found[:_SHOWN]]
    more = len(found) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")
