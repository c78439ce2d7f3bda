"""What a rollout's spans say was done: agents, nodes, tools and calls, each below what it was part of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spangrad import semconv
from spangrad.spans import Span, llm_call


@dataclass(frozen=True, slots=True)
class ExplainedWork:
    """One piece of work, as its span tells it."""

    depth: int
    """How many pieces of work it is part of."""
    name: str
    operation: str | None
    """GenAI's word: invoke_agent, execute_tool, chat ..."""
    agent: str | None
    call_id: str | None
    """Of the LLM call it stands for; None for other work."""
    tool: str | None
    tool_call_id: str | None
    arguments: str | None
    """What the tool was called with."""
    result: str | None
    """What the tool gave."""
    error: str | None
    """What went wrong, if anything."""
    incomplete: bool
    """It was still under way when the rollout ended."""


def work_tree(spans: Iterable[Span]) -> tuple[ExplainedWork, ...]:
    """The pieces of work in the order they began, each followed by its parts.

    Args:
        spans: of one attempt of one rollout; one whose parent is not among them is nobody's part.
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.span_id))
    known = {(span.trace_id, span.span_id) for span in ordered}
    parts: dict[tuple[str, str | None], list[Span]] = {}
    for span in ordered:
        parent = span.parent_id if (span.trace_id, span.parent_id) in known else None
        parts.setdefault((span.trace_id, parent), []).append(span)
    found: list[ExplainedWork] = []
    seen: set[tuple[str, str]] = set()

    def visit(span: Span, depth: int) -> None:
        key = (span.trace_id, span.span_id)
        if key in seen:  # parents that form a ring
            return
        seen.add(key)
        found.append(_work(span, depth))
        for part in parts.get(key, ()):
            visit(part, depth + 1)

    whole = [span for span in ordered if (span.trace_id, span.parent_id) not in known]
    for span in (*whole, *ordered):  # those of a ring hang below nothing, and come last
        visit(span, 0)
    return tuple(found)


def _work(span: Span, depth: int) -> ExplainedWork:
    call = llm_call(span)
    error = span.status_message or _text(span.attributes, semconv.ERROR_TYPE) or "error"
    return ExplainedWork(
        depth=depth,
        name=span.name,
        operation=_text(span.attributes, semconv.OPERATION_NAME),
        agent=_text(span.attributes, semconv.AGENT_NAME),
        call_id=call.call_id if call is not None else None,
        tool=_text(span.attributes, semconv.TOOL_NAME),
        tool_call_id=_text(span.attributes, semconv.TOOL_CALL_ID),
        arguments=_text(span.attributes, semconv.TOOL_ARGUMENTS),
        result=_text(span.attributes, semconv.TOOL_RESULT),
        error=error if span.status == "error" else None,
        incomplete=span.attributes.get(semconv.INCOMPLETE) is True,
    )


def _text(attributes: Mapping[str, object], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None
