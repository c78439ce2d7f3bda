"""The GenAI dialect: reads an LLM call out of a span that follows OpenTelemetry's GenAI semantic conventions."""

from __future__ import annotations

from dataclasses import dataclass

from spangrad.spans._span import Span


@dataclass(frozen=True, slots=True)
class LLMCall:
    """What a span says about the LLM call it stands for. It never carries tokens: those come from the gateway's call."""

    call_id: str | None
    """Joins the span to the gateway's record; None when the client was not patched to stamp it."""
    request_key: str | None
    provider: str | None
    model: str | None
    """The alias the agent asked for; the answering model's name when the request's was not recorded."""
    response_id: str | None
    finish_reasons: tuple[str, ...]
    input_tokens: int | None
    output_tokens: int | None
    agent: str | None


def llm_call(span: Span) -> LLMCall | None:
    """The LLM call `span` stands for; None when it stands for something else (an agent, a tool, an embedding)."""
    raise NotImplementedError
