"""Streams as real openai clients read them, whole, broken and closed early; and what the store then holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
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


def test_a_stream_arrives_piece_by_piece_with_role_usage_and_ids(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: ["one ", "two ", "three"]).open_rollout("r", 1))
    chunks = list(
        client.chat.completions.create(
            model="model",
            messages=user("count"),
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
    )
    *body, usage = chunks
    assert [c.choices[0].delta.content for c in body] == ["", "one ", "two ", "three", None, None]
    assert [c.choices[0].delta.role for c in body] == ["assistant", None, None, None, None, None]
    assert [c.choices[0].finish_reason for c in body] == [None] * 5 + ["stop"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(b"one two three") + 1
    call = only_call(gateway_store)
    ids = [token for c in body for token in (c.choices[0].model_extra or {}).get("token_ids", [])]
    assert tuple(ids) == call.choices[0].token_ids
    assert tuple(body[0].model_extra["prompt_token_ids"]) == call.prompt_ids  # type: ignore[index]  # extras are there
    assert call.status is CallStatus.OK


def test_content_reaches_the_agent_while_the_rest_is_still_sampled(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    release = asyncio.Event()
    gateway = make_gateway(lambda _: ["early ", release.wait, "late"])
    client = connect_openai(gateway.open_rollout("r", 1), timeout=30)
    stream = client.chat.completions.create(model="model", messages=user("go"), stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content == "early "
    loop = gateway._server.loop
    assert loop is not None
    loop.call_soon_threadsafe(release.set)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "late"


def test_a_stream_closed_early_is_undelivered_and_its_sampling_stops(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    sampler = ScriptedSampler(lambda _: ["early ", asyncio.Event().wait, "never"])
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    client = connect_openai(gateway.open_rollout("r", 1))
    with client.chat.completions.create(model="model", messages=user("go"), stream=True) as stream:
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "early "]
    tally = gateway.close_rollout("r", 1).result(timeout=10)
    call = only_call(gateway_store)
    assert (tally.answered, call.status, call.choices[0].token_ids) == (0, CallStatus.UNDELIVERED, tuple(b"early "))
    assert sampler.finished == 0


def test_the_stream_helper_puts_the_answer_together(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    client = connect_openai(make_gateway(lambda _: ["Let me see. ", CALL_TEXT]).open_rollout("r", 1))
    with client.chat.completions.stream(model="model", messages=user("97+3?"), tools=[CALC]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "Let me see."
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"expression": "97+3"}
    assert final.choices[0].finish_reason == "tool_calls"


def test_an_engine_that_fails_in_the_middle_of_a_stream_ends_it_with_an_error(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: ["half", BackendError("out of memory")]).open_rollout("r", 1))
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="out of memory"):
        seen.extend(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(model="model", messages=user("x"), stream=True)
        )
    call = only_call(gateway_store)
    assert (call.status, call.reason) == (CallStatus.ERROR, "out of memory")
    assert call.choices[0].token_ids == tuple(b"half")


def test_the_call_is_in_the_store_when_the_stream_names_its_finish_reason(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    for chunk in client.chat.completions.create(model="model", messages=user("x"), stream=True):
        if chunk.choices[0].finish_reason:
            assert only_call(gateway_store).status is CallStatus.OK
            break
    else:
        pytest.fail("the stream named no finish reason")
