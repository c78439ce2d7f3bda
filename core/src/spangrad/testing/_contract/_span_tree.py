"""Spans as text: one a line, each indented below its parent."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv


def tree_text(spans: Sequence[ReadableSpan], agents: Mapping[str, str | None], *, ordered: bool = True) -> str:
    """The spans as `Structure.tree` has them.

    Args:
        spans: in any order; one whose parent is not among them is a root.
        agents: call id -> the agent the call is recorded under. A span that names a call is shown as "call AGENT".
        ordered: by the time they began; otherwise by their text, so that it does not matter which branch was first.
    """
    by_start = sorted(spans, key=lambda span: (span.start_time or 0, span.context.span_id))
    ids = {span.context.span_id for span in by_start}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in by_start:
        parent = span.parent.span_id if span.parent is not None else None
        below.setdefault(parent if parent in ids else None, []).append(span)

    def lines(parent: int | None) -> list[str]:
        blocks = [
            [_label(span, agents), *(f"  {line}" for line in lines(span.context.span_id))]
            for span in below.get(parent, ())
        ]
        return [line for block in (blocks if ordered else sorted(blocks)) for line in block]

    return "\n".join(lines(None))


def unordered(tree: str) -> str:
    """A tree's text with the lines below each one in the order of their text."""

    def blocks(rows: Sequence[str]) -> list[list[str]]:
        starts = [i for i, row in enumerate(rows) if not row.startswith("  ")]
        parts = [rows[i:j] for i, j in pairwise([*starts, len(rows)])]
        inner = ([part[0], *(f"  {row}" for row in flat([r[2:] for r in part[1:]]))] for part in parts)
        return sorted(inner)

    def flat(rows: Sequence[str]) -> list[str]:
        return [row for block in blocks(rows) for row in block]

    return "\n".join(flat(plain(tree).splitlines()))


def plain(tree: str) -> str:
    """A tree's text without the indentation and the empty lines that writing it in a program gives it."""
    return textwrap.dedent(tree).strip("\n").rstrip()


def call_of(span: ReadableSpan) -> str | None:
    """The id of the call whose answer the span says it got; None when the span is no model call's."""
    call_id = (span.attributes or {}).get(semconv.CALL_ID)
    return None if call_id is None else str(call_id)


def _label(span: ReadableSpan, agents: Mapping[str, str | None]) -> str:
    call_id = call_of(span)
    if call_id is None:
        return span.name
    return f"call {agents[call_id]}" if call_id in agents else f"call of nobody here ({call_id})"
