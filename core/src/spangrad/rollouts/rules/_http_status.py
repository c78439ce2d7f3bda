"""Answers of HTTP servers that say something went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from spangrad import semconv
from spangrad.rollouts.rules._rule import Occurrence, Rule
from spangrad.rollouts.rules._work import Work, text_of
from spangrad.spans import Span, llm_call

_ATTRIBUTES: Final = ("http.response.status_code", "http.status_code")
"""The conventions' name, and the one it had before."""


def http_status(work: Work, rule: Rule) -> Iterator[Occurrence]:
    """Spans with a status of at least `rule.at_least`.

    Requests to the model are not the agent's doing and do not count; of spans inside each other with one status, the
    outermost counts. The tool is the one whose span it is, or is part of.
    """
    for span in work.spans:
        status = _status(span)
        if status is None or status < rule.at_least:
            continue
        around = list(work.upwards(span))
        if any(llm_call(one) is not None for one in around) or any(_status(one) == status for one in around[1:]):
            continue
        tool = next((name for one in around if (name := text_of(one, semconv.TOOL_NAME)) is not None), None)
        yield Occurrence(work.call_of(span), work.agent_of(span), tool)


def _status(span: Span) -> int | None:
    found = (_whole(span.attributes.get(name)) for name in _ATTRIBUTES)
    return next((status for status in found if status is not None), None)


def _whole(value: Any) -> int | None:
    """A status as a number; some exporters write it as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value) if len(value) == 3 else None  # noqa: PLR2004 - a status has three digits
    return value if isinstance(value, int) and not isinstance(value, bool) else None
