"""Comparing what was found with what was expected, in words that name both."""

from __future__ import annotations


def same(found: object, expected: object, about: str) -> None:
    """Compares.

    Raises:
        AssertionError: they differ.
    """
    if found != expected:
        raise AssertionError(f"{about}\n  expected: {_shown(expected)}\n  found:    {_shown(found)}")


def holds(condition: object, about: str) -> None:
    """Insists.

    Raises:
        AssertionError: the condition is not true; `about` says what is wrong.
    """
    if not condition:
        raise AssertionError(about)


def _shown(value: object) -> str:
    """A text over several lines below its label, all else as it is."""
    if isinstance(value, str) and "\n" in value:
        return "\n" + "\n".join(f"    {line}" for line in value.splitlines())
    return repr(value)
