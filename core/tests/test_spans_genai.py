"""LLM calls read out of spans."""

from __future__ import annotations

from typing import Any

import pytest

from spangrad.spans import LLMCall, Span, llm_call, stamped_call_id


def span(**attributes: Any) -> Span:
    """A span with these attributes, `__` standing for a dot."""
    return Span(
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id=None,
        rollout_id=None,
        attempt=None,
        name="s",
        kind="client",
        start_ns=1,
        end_ns=2,
        status="unset",
        status_message="",
        attributes={name.replace("__", "."): value for name, value in attributes.items()},
        events=(),
        scope="",
    )


def test_a_chat_span_of_todays_conventions_is_read_whole() -> None:
    assert llm_call(
        span(
            gen_ai__operation__name="chat",
            gen_ai__provider__name="openai",
            gen_ai__request__model="policy",
            gen_ai__response__model="smollm2",
            gen_ai__response__id="chatcmpl-1",
            gen_ai__response__finish_reasons=["stop", "tool_calls"],
            gen_ai__usage__input_tokens=12,
            gen_ai__usage__output_tokens=3,
            gen_ai__agent__name="solver",
            spangrad__call__id="c1",
            spangrad__request__key="k1",
        )
    ) == LLMCall(
        call_id="c1",
        request_key="k1",
        provider="openai",
        model="policy",
        response_id="chatcmpl-1",
        finish_reasons=("stop", "tool_calls"),
        input_tokens=12,
        output_tokens=3,
        agent="solver",
    )


def test_old_names_count_where_the_new_ones_are_missing() -> None:
    call = llm_call(
        span(
            gen_ai__system="OpenAI",
            llm__request__type="chat",
            gen_ai__response__model="m",
            gen_ai__usage__prompt_tokens=5,
            gen_ai__usage__completion_tokens=0,
            gen_ai__response__finish_reasons="stop",
        )
    )
    assert call == LLMCall(None, None, "OpenAI", "m", None, ("stop",), 5, 0, None)


def test_a_provider_with_a_model_is_a_call_even_without_an_operation() -> None:
    assert llm_call(span(gen_ai__system="openai", gen_ai__request__model="m")) is not None
    assert llm_call(span(gen_ai__system="autogen")) is None


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "create_agent", "embeddings"])
def test_spans_of_other_operations_are_no_calls(operation: str) -> None:
    assert (
        llm_call(span(gen_ai__operation__name=operation, gen_ai__system="autogen", gen_ai__request__model="m")) is None
    )


def test_a_span_that_says_nothing_of_a_model_is_no_call() -> None:
    assert llm_call(span(http__method="POST")) is None


def test_values_of_a_wrong_type_count_as_missing() -> None:
    call = llm_call(
        span(
            gen_ai__operation__name="chat",
            gen_ai__request__model=7,
            spangrad__call__id=["c"],
            gen_ai__usage__input_tokens="12",
            gen_ai__usage__output_tokens=True,
            gen_ai__response__finish_reasons=3,
        )
    )
    assert call == LLMCall(None, None, None, None, None, (), None, None, None)


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "chat", "spangrad.call.id": "c1"},
        {"gen_ai.operation.name": "chat"},
        {"gen_ai.operation.name": "chat", "spangrad.call.id": ""},
        {"gen_ai.operation.name": "embeddings", "spangrad.call.id": "c1"},
        {"gen_ai.system": "openai", "gen_ai.response.model": "m", "spangrad.call.id": "c1"},
        {"gen_ai.system": "openai", "spangrad.call.id": "c1"},
        {},
    ],
)
def test_the_stamped_call_id_is_that_of_the_llm_call(attributes: dict[str, Any]) -> None:
    made = span(**attributes)
    call = llm_call(made)
    assert stamped_call_id(made) == (None if call is None else call.call_id)
