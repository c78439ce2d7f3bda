"""The GenAI dialect: reads an LLM call out of a span that follows OpenTelemetry's GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spangrad import semconv
from spangrad.spans._span import Span

_LLM_OPERATIONS: Final = frozenset({"chat", "text_completion", "completion", "generate_content"})

# Names that older instrumentors still emit; the conventions replaced them.
_OLD_OPERATION: Final = "llm.request.type"
_OLD_INPUT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
_OLD_OUTPUT_TOKENS: Final = "gen_ai.usage.completion_tokens"


@dataclass(frozen=True, slots=True)
class LLMCall:
    """What a span says about the LLM call it stands for. It never carries tokens: those come from the gateway's call."""

    call_id: str | None
    """Joins the span to the gateway's record; None when the client was not patched to stamp it."""
    request_key: str | None
    """Equal for the HTTP attempts (retries) of one request."""
    provider: str | None
    model: str | None
    """The alias the agent asked for; the answering model's name when the request's was not recorded."""
    response_id: str | None
    finish_reasons: tuple[str, ...]
    """One per choice."""
    input_tokens: int | None
    output_tokens: int | None
    agent: str | None
    """Which of the rollout's agents called, when the span says so itself."""


def llm_call(span: Span) -> LLMCall | None:
    """The LLM call `span` stands for; None when it stands for something else (an agent, a tool, an embedding).

    Old names count where the new one is missing: `gen_ai.system` for the provider, prompt and completion tokens for input
    and output tokens. Values of a wrong type count as missing.
    """
    attributes = span.attributes
    provider = _text(attributes, semconv.PROVIDER_NAME, semconv.SYSTEM)
    model = _text(attributes, semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL)
    operation = _text(attributes, semconv.OPERATION_NAME, _OLD_OPERATION)
    # Before operations had names, a provider together with a model meant an LLM call.
    if operation not in _LLM_OPERATIONS if operation else not (provider and model):
        return None
    return LLMCall(
        call_id=_text(attributes, semconv.CALL_ID),
        request_key=_text(attributes, semconv.REQUEST_KEY),
        provider=provider,
        model=model,
        response_id=_text(attributes, semconv.RESPONSE_ID),
        finish_reasons=_texts(attributes.get(semconv.FINISH_REASONS)),
        input_tokens=_count(attributes, semconv.INPUT_TOKENS, _OLD_INPUT_TOKENS),
        output_tokens=_count(attributes, semconv.OUTPUT_TOKENS, _OLD_OUTPUT_TOKENS),
        agent=_text(attributes, semconv.AGENT_NAME),
    )


def _text(attributes: Mapping[str, Any], *names: str) -> str | None:
    """The first of the named attributes that is text and not empty."""
    return next((v for name in names if isinstance(v := attributes.get(name), str) and v), None)


def _count(attributes: Mapping[str, Any], *names: str) -> int | None:
    """The first of the named attributes that is a whole number."""
    values = (attributes.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)


def _texts(value: Any) -> tuple[str, ...]:
    """A list of text; a lone text counts as a list of one."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
