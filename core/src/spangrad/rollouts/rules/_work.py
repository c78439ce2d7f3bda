"""What a rollout did, and which call a piece of its work came from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from spangrad import semconv
from spangrad.spans import Span
from spangrad.transitions import Call, CallStatus, SpanFacts, superseded_by

_NANO: Final = 1_000_000_000


@dataclass(frozen=True)
class Work:
    """A rollout's answered calls and its spans, ready to be asked about.

    A span is linked to a call as follows; the first point that applies decides.

    1. It, or the nearest span above it that has one, up to the agent's, carries a tool call id: the call whose answer asked for a tool by that
       id; of several, the latest that was answered before the span began. An id that no answer has links to nothing.
    2. It is part of an LLM call of that agent, known by its call id: that call.
    3. Else the latest call of the same agent that was answered before the span began. The agent is the one named by the span
       or by the nearest above it; a span under no named agent is linked only if all calls are of one agent, or of none.
    """

    calls: tuple[Call, ...]
    """Those whose answer reached the agent, in the order they were received."""
    spans: tuple[Span, ...]
    """In the order they began."""
    agents: Mapping[str, str | None]
    """Call id -> the agent that made it; None where it is not known."""
    _by_id: Mapping[tuple[str, str], Span]
    _asked: Mapping[str, tuple[Call, ...]]
    """Tool call id -> the calls whose answer has it."""

    @classmethod
    def of(cls, calls: Iterable[Call], spans: Iterable[Span]) -> Self:
        """From all calls and spans of one attempt; calls that failed or were repeated are left out."""
        spans = sorted(spans, key=lambda span: (span.start_ns, span.span_id))
        facts, ordered = SpanFacts.of(spans), sorted(calls, key=lambda call: (call.received_at, call.call_id))
        replaced = superseded_by(ordered, facts.delivered)
        kept = tuple(call for call in ordered if call.status is CallStatus.OK and call.call_id not in replaced)
        asked: dict[str, tuple[Call, ...]] = {}
        for call in kept:
            ids = {tool_call.get("id") for message in messages(call) for tool_call in tool_calls(message)}
            for tool_call_id in ids:
                if isinstance(tool_call_id, str) and tool_call_id:
                    asked[tool_call_id] = (*asked.get(tool_call_id, ()), call)
        return cls(
            calls=kept,
            spans=tuple(spans),
            agents={call.call_id: call.agent or facts.agents.get(call.call_id) for call in kept},
            _by_id={(span.trace_id, span.span_id): span for span in spans},
            _asked=asked,
        )

    def upwards(self, span: Span) -> Iterator[Span]:
        """The span, the one it is part of, and so on."""
        seen: set[str] = set()
        here: Span | None = span
        while here is not None and here.span_id not in seen:  # parents that form a ring must not hang us
            yield here
            seen.add(here.span_id)
            here = None if here.parent_id is None else self._by_id.get((here.trace_id, here.parent_id))

    def _within_agent(self, span: Span) -> Iterator[Span]:
        """The span and those it is part of, up to the agent's: what is above belongs to whoever called the agent."""
        for here in self.upwards(span):
            if text_of(here, semconv.OPERATION_NAME) == semconv.AGENT_OPERATION:
                return
            yield here

    def agent_of(self, span: Span) -> str | None:
        """The agent named by the span or by the nearest above it."""
        return _first(self.upwards(span), semconv.AGENT_NAME)

    def call_of(self, span: Span) -> str | None:
        """Id of the call the span is linked to; None where it cannot be told."""
        if (tool_call_id := _first(self._within_agent(span), semconv.TOOL_CALL_ID)) is not None:
            askers = self._asked.get(tool_call_id, ())
            return _id(askers if len(askers) == 1 else _before(span, askers))
        if (call_id := _first(self._within_agent(span), semconv.CALL_ID)) is not None:
            return call_id if call_id in self.agents else None
        agent = self.agent_of(span)
        if agent is None and len(set(self.agents.values())) > 1:
            return None
        same = [call for call in self.calls if agent is None or self.agents[call.call_id] == agent]
        return _id(_before(span, same))


def messages(call: Call) -> list[Mapping[str, Any]]:
    """The assistant messages of the call's choices."""
    return [choice.message for choice in call.choices]


def tool_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tool calls of an assistant message; what is none by its shape is left out."""
    given = message.get("tool_calls")
    return [one for one in given if isinstance(one, Mapping)] if isinstance(given, Sequence) else []


def asked_tool(tool_call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Name and arguments that a tool call asks for, as they stand there."""
    function = tool_call.get("function")
    return (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else (None, None)


def text_of(span: Span, attribute: str) -> str | None:
    """The attribute where it is text and not empty."""
    value = span.attributes.get(attribute)
    return value if isinstance(value, str) and value else None


def _first(spans: Iterable[Span], attribute: str) -> str | None:
    """The attribute of the first span that has it."""
    return next((value for span in spans if (value := text_of(span, attribute)) is not None), None)


def _before(span: Span, calls: Collection[Call]) -> list[Call]:
    """Those of the calls that were answered when the span began, the latest answered last."""
    done = [(call.finished_at or call.received_at, call) for call in calls]
    return [call for at, call in sorted(done, key=lambda pair: pair[0]) if at * _NANO <= span.start_ns]


def _id(calls: Sequence[Call]) -> str | None:
    return calls[-1].call_id if calls else None
