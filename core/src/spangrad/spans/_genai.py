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
    if not _is_llm_call(attributes):
        return None
    return LLMCall(
        call_id=_text(attributes, semconv.CALL_ID),
        request_key=_text(attributes, semconv.REQUEST_KEY),
        provider=_provider(attributes),
        model=_model(attributes),
        response_id=_text(attributes, semconv.RESPONSE_ID),
        finish_reasons=_texts(attributes.get(semconv.FINISH_REASONS)),
        input_tokens=_count(attributes, semconv.INPUT_TOKENS, _OLD_INPUT_TOKENS),
        output_tokens=_count(attributes, semconv.OUTPUT_TOKENS, _OLD_OUTPUT_TOKENS),
        agent=_text(attributes, semconv.AGENT_NAME),
    )


def stamped_call_id(span: Span) -> str | None:
    """The call id of `llm_call(span)`, without reading the rest: this is asked of every span of a run."""
    call_id = _text(span.attributes, semconv.CALL_ID)
    return call_id if call_id is not None and _is_llm_call(span.attributes) else None


def _is_llm_call(attributes: Mapping[str, Any]) -> bool:
    operation = _text(attributes, semconv.OPERATION_NAME, _OLD_OPERATION)
    if operation is not None:
        return operation in _LLM_OPERATIONS
    # Before operations had names, a provider together with a model meant an LLM call.
    return _provider(attributes) is not None and _model(attributes) is not None


def _provider(attributes: Mapping[str, Any]) -> str | None:
    return _text(attributes, semconv.PROVIDER_NAME, semconv.SYSTEM)


def _model(attributes: Mapping[str, Any]) -> str | None:
    return _text(attributes, semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL)


def _text(attributes: Mapping[str, Any], *names: str) -> str | None:
    """The first of the named attributes that is text and not empty."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def _count(attributes: Mapping[str, Any], *names: str) -> int | None:
    """The first of the named attributes that is a whole number."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _texts(value: Any) -> tuple[str, ...]:
    """A list of text; a lone text counts as a list of one."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
