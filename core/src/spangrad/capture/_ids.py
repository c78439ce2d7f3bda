"""Names that the user gives to tasks, rollouts and groups."""

from __future__ import annotations

from typing import Final

LONGEST_ID: Final = 200
"""Characters. Ids become part of URLs and headers, which servers limit."""


def problem_of_id(given: object) -> str | None:
    """What keeps a value from being an id, as the end of a sentence about it; None when nothing does."""
    if not isinstance(given, str):
        return f"is of type {type(given).__name__}, not text"
    if not given:
        return "is empty"
    if len(given) > LONGEST_ID:
        return f"has {len(given)} characters, more than {LONGEST_ID}"
    if any("\ud800" <= character <= "\udfff" for character in given):
        return "holds half of a surrogate pair, which is no character"
    return None
