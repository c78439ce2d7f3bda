"""What a rollout's spans say about its calls: which answers reached the agent, and which agent it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spangrad import semconv
from spangrad.spans import Span, stamped_call_id


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """Facts by call id."""

    delivered: frozenset[str]
    """Calls whose answer reached the agent: the client stamps the id on the LLM-call span when it takes the answer."""
    agents: Mapping[str, str]
    """The agent that made the call: named by the LLM-call span or by the nearest span above it that names one."""

    @classmethod
    def of(cls, spans: Iterable[Span]) -> SpanFacts:
        """Reads the facts out of a rollout's spans."""
        by_id = {(span.trace_id, span.span_id): span for span in spans}
        stamped: dict[str, Span] = {}
        for span in by_id.values():
            if (call_id := stamped_call_id(span)) is not None:
                stamped[call_id] = span
        named = {call_id: _agent(span, by_id) for call_id, span in stamped.items()}
        return cls(frozenset(stamped), {call_id: agent for call_id, agent in named.items() if agent is not None})


def _agent(span: Span, by_id: Mapping[tuple[str, str], Span]) -> str | None:
    """The agent named by the span or by the nearest one above it."""
    seen: set[str] = set()
    here: Span | None = span
    while here is not None and here.span_id not in seen:
        if isinstance(name := here.attributes.get(semconv.AGENT_NAME), str) and name:
            return name
        seen.add(here.span_id)  # parents that form a ring must not hang us
        here = by_id.get((here.trace_id, here.parent_id)) if here.parent_id is not None else None
    return None
