"""Whole responses as real openai clients get them; and what the store then holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from spangrad.errors import BackendError
from spangrad.gateway import Gateway, RolloutAccess, SamplingOverride, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler, scripted_logprob
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
FORMAT = ByteChatFormat()
CALC: Any = {"type": "function", "name": "calc", "parameters": {"type": "object"}, "strict": True}
CHAT_CALC: Any = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
CALL_TEXT = '<tool_call>{"name": "calc", "arguments": {"expression": "97+3"}}</tool_call>'


class Size(BaseModel):
    width: int


def echo(prompt: ScriptedPrompt) -> str:
    return f"you said {prompt.last}"


def only_call(store: Store, rollout_id: str = "r") -> Call:
    (call,) = store.calls(rollout_id)
    return call


def post(access: RolloutAccess, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {access.api_key}"}
    body = {"model": "model", "input": "x", **fields}
    return httpx.post(f"{access.base_url}/responses", json=body, headers=headers, trust_env=False, timeout=30)


def test_a_response_and_its_record_agree_on_every_token(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    response = client.responses.create(
        model="model", instructions="Be good.", input="hé", temperature=0.7, top_p=0.9, metadata={"a": "b"}
    )
    call = only_call(gateway_store)
    prompt = FORMAT.render([{"role": "system", "content": "Be good."}, {"role": "user", "content": "hé"}])
    sampled = (*"you said hé".encode(), 257)
    assert call.prompt_ids == prompt
    assert call.choices[0].token_ids == sampled
    assert call.choices[0].logprobs == tuple(scripted_logprob(prompt, i, t, 0) for i, t in enumerate(sampled))
    assert call.choices[0].message == {"role": "assistant", "content": "you said hé", "refusal": None}
    assert (call.rollout_id, call.attempt, call.status, call.reason) == ("r", 1, CallStatus.OK, "")
    assert (call.model, call.policy, call.policy_version, call.endpoint) == ("model", "policy", 0, "scripted")
    assert (call.temperature, call.top_p, call.top_k) == (0.7, 0.9, 0)
    assert call.request == {
        "model": "model",
        "instructions": "Be good.",
        "input": "hé",
        "temperature": 0.7,
        "top_p": 0.9,
        "metadata": {"a": "b"},
    }

    assert response.output_text == "you said hé"
    assert (response.id, response._request_id) == (f"resp_{call.call_id}", call.call_id)
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert (response.model, response.instructions, response.metadata) == ("model", "Be good.", {"a": "b"})
    assert (response.temperature, response.top_p, response.tool_choice, response.tools) == (0.7, 0.9, "auto", [])
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(prompt), len(sampled))
    assert response.usage.total_tokens == len(prompt) + len(sampled)


async def test_an_async_client_gets_the_same(make_gateway: MakeGateway, gateway_store: Store) -> None:
    access = make_gateway(echo).open_rollout("r", 1)
    async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key) as client:
        whole = await client.responses.create(model="model", input="hi")
        async with client.responses.stream(model="model", input="hi") as stream:
            streamed = await stream.get_final_response()
    assert whole.output_text == streamed.output_text == "you said hi"
    first, second = gateway_store.calls("r")
    assert first.choices == second.choices


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "i", "metadata": {"a": "b"}, "truncation": "auto", "user": "me", "store": False},
        {"max_output_tokens": 2},
        {"tools": [CALC], "tool_choice": {"type": "function", "name": "calc"}, "parallel_tool_calls": False},
        {"tools": [{"type": "function", "name": "calc"}], "tool_choice": "none"},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}, "verbosity": "low"}},
        {"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}},
    ],
)
def test_a_response_is_of_openais_documented_shape(make_gateway: MakeGateway, fields: dict[str, Any]) -> None:
    access = make_gateway(lambda _: ["so ", CALL_TEXT]).open_rollout("r", 1)
    data = post(access, **fields).content
    response = Response.model_validate_json(data, strict=True)
    assert response.output
    assert response.usage is not None


def test_a_function_call_in_the_text_is_an_output_item(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    pieces = ["I'll compute", " <tool", CALL_TEXT[len("<tool") :]]
    client = connect_openai(make_gateway(lambda _: pieces).open_rollout("r", 1))
    message, function_call = client.responses.create(model="model", input="97+3?", tools=[CALC]).output
    call = only_call(gateway_store)
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert message.content[0].text == "I'll compute"
    assert function_call.type == "function_call"
    assert (function_call.name, function_call.arguments) == ("calc", '{"expression": "97+3"}')
    assert function_call.call_id == call.choices[0].message["tool_calls"][0]["id"]
    assert call.prompt_ids == FORMAT.render([{"role": "user", "content": "97+3?"}], tools=[CHAT_CALC])
    assert call.choices[0].finish_reason == "tool_calls"
    assert call.choices[0].token_ids == (*"".join(pieces).encode(), 257)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "calc"}])
def test_a_forced_function_call_is_begun_in_the_prompt(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store, choice: Any
) -> None:
    client = connect_openai(make_gateway(lambda _: ' {"e": "1"}}</tool_call>').open_rollout("r", 1))
    (item,) = client.responses.create(model="model", input="x", tools=[CALC], tool_choice=choice).output
    assert item.type == "function_call"
    assert item.arguments == '{"e": "1"}'
    opening = '<tool_call>{"name": "calc", "arguments":'
    expected = FORMAT.render([{"role": "user", "content": "x"}], tools=[CHAT_CALC], opening=opening)
    assert only_call(gateway_store).prompt_ids == expected


def test_an_answer_cut_by_its_limit_is_incomplete(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: "one two three").open_rollout("r", 1))
    response = client.responses.create(model="model", input="x", max_output_tokens=5)
    assert (response.status, response.output_text) == ("incomplete", "one t")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert only_call(gateway_store).choices[0].finish_reason == "length"


def test_an_empty_answer_is_an_empty_message(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    response = connect_openai(make_gateway(lambda _: "").open_rollout("r", 1)).responses.create(
        model="model", input="x"
    )
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == ""


def test_logprobs_and_token_ids_are_in_the_answer_when_they_are_asked_for(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: "ab").open_rollout("r", 1))
    asked: Any = client.responses.create(
        model="model",
        input="x",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body={"return_token_ids": True},
    )
    call = only_call(gateway_store)
    entries = asked.output[0].content[0].logprobs
    assert [entry.token for entry in entries] == ["a", "b", "<|im_end|>"]
    assert tuple(entry.logprob for entry in entries) == call.choices[0].logprobs
    assert [top.token for top in entries[0].top_logprobs] == ["a", "b"]
    assert (tuple(asked.prompt_token_ids), tuple(asked.token_ids)) == (call.prompt_ids, call.choices[0].token_ids)
    plain: Any = client.responses.create(model="model", input="x")
    assert plain.output[0].content[0].logprobs == []
    assert not hasattr(plain, "token_ids")


def test_a_schema_is_told_and_the_answer_parsed(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: '{"width": 5}').open_rollout("r", 1))
    response = client.responses.parse(model="model", input="how wide?", text_format=Size)
    completion = client.chat.completions.parse(
        model="model", messages=[{"role": "user", "content": "how wide?"}], response_format=Size
    )
    assert response.output_parsed == completion.choices[0].message.parsed == Size(width=5)
    first, second = gateway_store.calls("r")
    assert first.prompt_ids == second.prompt_ids
    turns = FORMAT.read(first.prompt_ids or ())
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert turns[0]["content"].startswith("Answer with JSON and nothing else. It must match this JSON Schema:\n{")
    assert '"width":{"title":"Width","type":"integer"}' in turns[0]["content"]


def test_an_answer_in_the_wrong_form_is_the_agents_to_meet(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: "five").open_rollout("r", 1))
    with pytest.raises(ValueError, match="JSON"):
        client.responses.parse(model="model", input="how wide?", text_format=Size)
    assert only_call(gateway_store).status is CallStatus.OK


def test_a_rollouts_overrides_win_and_the_response_says_so(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = make_gateway(TokenEngine(sampler, FORMAT, "scripted"))
    override = SamplingOverride(temperature=1.0, top_p=1.0, max_tokens=9, seed=5)
    client = connect_openai(gateway.open_rollout("r", 1, sampling=override))
    response = client.responses.create(
        model="model",
        input="x",
        temperature=0.1,
        top_p=0.2,
        max_output_tokens=400,
        extra_body={"top_k": 3, "stop": "a"},
    )
    (asked,) = (request.params for request in sampler.requests)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.max_tokens, asked.stop) == (1.0, 1.0, 3, 9, ("a",))
    assert (response.temperature, response.top_p, response.max_output_tokens) == (1.0, 1.0, 400)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "gpt-5"}, ("NotFoundError", "model_not_found", "Ask for one of: model")),
        ({"temperature": 3}, ("BadRequestError", None, "temperature")),
        ({"tools": [{"type": "web_search"}]}, ("BadRequestError", "unsupported_parameter", "'web_search'")),
        ({"tools": [{"type": "function"}]}, ("BadRequestError", None, "tools.0.function.name")),
        ({"conversation": "conv_1"}, ("BadRequestError", "unsupported_parameter", "previous_response_id")),
        ({"previous_response_id": "resp_x"}, ("BadRequestError", "previous_response_not_found", "resp_x")),
        ({"text": {"format": {"type": "grammar", "grammar": "x"}}}, ("BadRequestError", None, "not known")),
        ({"extra_body": {"logit_bias": {"5": 1}}}, ("BadRequestError", "unsupported_parameter", "logit_bias")),
        ({"input": "x" * 700}, ("BadRequestError", "context_length_exceeded", "holds 600")),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}]},
            ("BadRequestError", None, "part of type 'image_url'"),
        ),
        ({"input": "fail"}, ("InternalServerError", None, "out of memory")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_raises_openais_error_and_is_recorded(
    make_gateway: MakeGateway,
    connect_openai: Callable[..., openai.OpenAI],
    gateway_store: Store,
    fields: dict[str, Any],
    expected: tuple[str, str | None, str],
    *,
    stream: bool,
) -> None:
    error, code, words = expected
    sampler = ScriptedSampler(lambda _: BackendError("out of memory"), context_length=600)
    client = connect_openai(make_gateway(TokenEngine(sampler, FORMAT, "scripted")).open_rollout("r", 1))
    request: dict[str, Any] = {"model": "model", "input": "x", "stream": stream} | fields
    with pytest.raises(getattr(openai, error), match=words) as caught:
        client.responses.create(**request)
    assert caught.value.code == code
    call = only_call(gateway_store)
    assert call.status is CallStatus.ERROR
    assert call.reason in str(caught.value)
