"""Errors and retries as real openai clients meet them; and what the store then holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from spangrad.errors import BackendError
from spangrad.gateway import Gateway, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
CALC: Any = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
CALL_TEXT = '<tool_call>{"name": "calc", "arguments": {"expression": "97+3"}}</tool_call>'


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def echo(prompt: ScriptedPrompt) -> str:
    return f"you said {prompt.last}"


def only_call(store: Store, rollout_id: str = "r") -> Call:
    (call,) = store.calls(rollout_id)
    return call


def test_a_client_that_times_out_and_retries_leaves_an_undelivered_call_and_a_good_one(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    waits: Iterator[Callable[[], Any]] = iter([asyncio.Event().wait, lambda: asyncio.sleep(0)])
    gateway = make_gateway(lambda _: [next(waits), "at last"])
    client = connect_openai(gateway.open_rollout("r", 1), timeout=2.0, max_retries=1)
    answer = client.chat.completions.create(model="model", messages=user("x"))
    assert answer.choices[0].message.content == "at last"
    gateway.close_rollout("r", 1).result(timeout=10)
    calls = gateway_store.calls("r")
    assert [(call.status, call.retry) for call in calls] == [(CallStatus.UNDELIVERED, 0), (CallStatus.OK, 1)]


def test_retries_after_a_failure_are_calls_of_their_own_with_one_request_key(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    answers: Iterator[str | Exception] = iter([BackendError("out of memory"), BackendError("again"), "at last"])
    client = connect_openai(make_gateway(lambda _: next(answers)).open_rollout("r", 1), max_retries=2)
    answer = client.chat.completions.create(
        model="model", messages=user("x"), extra_headers={"x-spangrad-request": "req", "x-spangrad-agent": "solver"}
    )
    assert answer.choices[0].message.content == "at last"
    calls = gateway_store.calls("r")
    assert [(call.status, call.retry) for call in calls] == [
        (CallStatus.ERROR, 0),
        (CallStatus.ERROR, 1),
        (CallStatus.OK, 2),
    ]
    assert [call.reason for call in calls] == ["out of memory", "again", ""]
    assert {call.request_key for call in calls} == {"req"}
    assert {call.agent for call in calls} == {"solver"}
    assert len({call.call_id for call in calls}) == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "gpt-5"}, ("NotFoundError", "model_not_found", "Ask for one of: model")),
        ({"temperature": 3}, ("BadRequestError", None, "temperature")),
        ({"messages": []}, ("BadRequestError", None, "messages")),
        ({"n": 0, "top_p": 0}, ("BadRequestError", None, "top_p: .*; n: ")),
        ({"top_logprobs": 2}, ("BadRequestError", None, "top_logprobs needs logprobs")),
        ({"logit_bias": {"5": 1}}, ("BadRequestError", "unsupported_parameter", "logit_bias")),
        ({"frequency_penalty": 0.5}, ("BadRequestError", "unsupported_parameter", "frequency_penalty")),
        ({"response_format": {"type": "grammar"}}, ("BadRequestError", None, "response format .*'grammar'")),
        ({"extra_body": {"guided_json": {}}}, ("BadRequestError", "unsupported_parameter", "guided_json")),
        ({"tool_choice": "required"}, ("BadRequestError", None, "needs tools")),
        (
            {"tools": [CALC], "tool_choice": {"type": "function", "function": {"name": "search"}}},
            ("BadRequestError", None, "'search', which is not among the tools"),
        ),
        ({"messages": IMAGE}, ("BadRequestError", None, "part of type 'image_url'")),
        ({"messages": user("x" * 700)}, ("BadRequestError", "context_length_exceeded", "holds 600")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_cannot_be_honoured_raises_openais_error_and_is_recorded(
    make_gateway: MakeGateway,
    gateway_store: Store,
    fields: dict[str, Any],
    expected: tuple[str, str | None, str],
    stream: bool,
) -> None:
    error, code, words = expected
    sampler = ScriptedSampler(echo, context_length=600)
    access = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted")).open_rollout("r", 1)
    request: dict[str, Any] = {"model": "model", "messages": user("x"), "stream": stream} | fields
    with (
        openai.OpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0) as client,
        pytest.raises(getattr(openai, error), match=words) as caught,
    ):
        client.chat.completions.create(**request)
    assert caught.value.code == code
    call = only_call(gateway_store)
    assert call.status is CallStatus.ERROR
    assert call.reason in str(caught.value)
    assert sampler.started == 0


def test_fields_that_change_nothing_are_taken(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    client.chat.completions.create(
        model="model",
        messages=user("x"),
        user="someone",
        metadata={"a": "b"},
        store=False,
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        parallel_tool_calls=True,
        response_format={"type": "text"},
        extra_body={"my_own_field": [1, 2]},
    )
    assert only_call(gateway_store).request["my_own_field"] == [1, 2]


def test_an_engine_that_fails_is_an_internal_server_error(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: ValueError("a bug")).open_rollout("r", 1))
    with pytest.raises(openai.InternalServerError, match="ValueError: a bug"):
        client.chat.completions.create(model="model", messages=user("x"))
    assert only_call(gateway_store).status is CallStatus.ERROR


def test_the_models_are_the_routed_aliases(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    assert [model.id for model in client.models.list()] == ["model"]
    assert client.models.retrieve("model").id == "model"
    with pytest.raises(openai.NotFoundError, match="Ask for one of: model"):
        client.models.retrieve("other")
