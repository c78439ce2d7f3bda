"""Answers as real openai clients get them: tokens, tools, choices, sampling settings; and what the store then holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from spangrad.gateway import Gateway, SamplingOverride, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler, scripted_logprob
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


def test_an_answer_and_its_record_agree_on_every_token(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("hé"), temperature=0.7, top_p=0.9)
    assert answer.choices[0].message.content == "you said hé"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "model"

    call = only_call(gateway_store)
    prompt = ByteChatFormat().render(user("hé"))
    sampled = (*"you said hé".encode(), 257)
    assert answer.id == f"chatcmpl-{call.call_id}"
    assert answer._request_id == call.call_id
    assert call.prompt_ids == prompt
    assert call.choices[0].token_ids == sampled
    assert call.choices[0].logprobs == tuple(scripted_logprob(prompt, i, t, 0) for i, t in enumerate(sampled))
    assert call.choices[0].message == {"role": "assistant", "content": "you said hé", "refusal": None}
    assert (call.rollout_id, call.attempt, call.status, call.reason) == ("r", 1, CallStatus.OK, "")
    assert (call.model, call.policy, call.policy_version, call.endpoint) == ("model", "policy", 0, "scripted")
    assert (call.temperature, call.top_p, call.top_k) == (0.7, 0.9, 0)
    assert call.request == {"model": "model", "messages": user("hé"), "temperature": 0.7, "top_p": 0.9}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), len(sampled))


def test_token_ids_are_in_the_answer_when_they_are_asked_for(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    create = connect_openai(make_gateway(echo).open_rollout("r", 1)).chat.completions.create
    asked: Any = create(model="model", messages=user("x"), extra_body={"return_token_ids": True})
    call = only_call(gateway_store)
    assert (tuple(asked.prompt_token_ids), tuple(asked.choices[0].token_ids)) == (
        call.prompt_ids,
        call.choices[0].token_ids,
    )
    plain = create(model="model", messages=user("x"))
    assert plain.model_extra == {}
    assert plain.choices[0].model_extra == {}


async def test_an_async_client_gets_the_same(make_gateway: MakeGateway, gateway_store: Store) -> None:
    access = make_gateway(echo).open_rollout("r", 1)
    async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key) as client:
        answer = await client.chat.completions.create(model="model", messages=user("hi"))
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(model="model", messages=user("hi"), stream=True)
        ]
    assert answer.choices[0].message.content == "you said hi"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "you said hi"
    assert [call.choices[0].message["content"] for call in gateway_store.calls("r")] == ["you said hi"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_in_the_text_becomes_an_openai_tool_call(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store, stream: bool
) -> None:
    pieces = ["I'll compute", " <tool", CALL_TEXT[len("<tool") : 40], CALL_TEXT[40:]]
    client = connect_openai(make_gateway(lambda _: pieces).open_rollout("r", 1))
    if stream:
        with client.chat.completions.stream(model="model", messages=user("97+3?"), tools=[CALC]) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(model="model", messages=user("97+3?"), tools=[CALC]).choices[0].message  # type: ignore[assignment]  # the parsed kind is a subclass
    assert message.content == "I'll compute"
    assert message.tool_calls is not None
    (tool_call,) = message.tool_calls
    assert tool_call.type == "function"
    assert tool_call.function.name == "calc"
    call = only_call(gateway_store)
    assert call.choices[0].finish_reason == "tool_calls"
    assert call.choices[0].message["tool_calls"][0]["id"] == tool_call.id
    assert call.choices[0].token_ids == (*"".join(pieces).encode(), 257)


def test_a_malformed_tool_call_is_answered_as_text(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    client = connect_openai(make_gateway(lambda _: ["<tool_call>{oops", "</tool_call>"]).open_rollout("r", 1))
    for stream in (False, True):
        options: Any = {"model": "model", "messages": user("x"), "tools": [CALC]}
        if stream:
            chunks = client.chat.completions.create(stream=True, **options)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = client.chat.completions.create(**options).choices[0].message.content
        assert text == "<tool_call>{oops</tool_call>"


def test_tools_hidden_by_the_tool_choice_are_not_called(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: CALL_TEXT).open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("x"), tools=[CALC], tool_choice="none")
    assert answer.choices[0].message.content == CALL_TEXT
    assert answer.choices[0].message.tool_calls is None
    assert only_call(gateway_store).prompt_ids == ByteChatFormat().render(user("x"))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calc"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool_call_is_begun_in_the_prompt_and_only_the_rest_is_sampled(
    make_gateway: MakeGateway,
    connect_openai: Callable[..., openai.OpenAI],
    gateway_store: Store,
    choice: Any,
    stream: bool,
) -> None:
    sampled = ' {"expression": "1+1"}}</tool_call>'
    client = connect_openai(make_gateway(lambda _: sampled).open_rollout("r", 1))
    options: Any = {"model": "model", "messages": user("x"), "tools": [CALC], "tool_choice": choice}
    if stream:
        with client.chat.completions.stream(**options) as events:
            answer = events.get_final_completion().choices[0]
    else:
        answer = client.chat.completions.create(**options).choices[0]

    call = only_call(gateway_store)
    assert answer.message.tool_calls is not None
    assert answer.message.tool_calls[0].function.arguments == '{"expression": "1+1"}'
    assert not answer.message.content
    assert answer.finish_reason == "tool_calls"
    opening = '<tool_call>{"name": "calc", "arguments":'
    assert call.prompt_ids == ByteChatFormat().render(user("x"), tools=[CALC], opening=opening)
    assert call.choices[0].token_ids == (*sampled.encode(), ByteChatFormat.end_id)


def test_several_choices_are_one_call(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda prompt: f"choice {prompt.choice}").open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("x"), n=3)
    assert [choice.message.content for choice in answer.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [choice.token_ids for choice in only_call(gateway_store).choices] == [
        (*f"choice {index}".encode(), 257) for index in range(3)
    ]


def test_logprobs_are_those_of_the_sampled_tokens(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: "ab").open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("x"), logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    assert [entry.token for entry in entries] == ["a", "b", "<|im_end|>"]
    assert tuple(entry.logprob for entry in entries) == only_call(gateway_store).choices[0].logprobs
    assert [top.token for top in entries[0].top_logprobs] == ["a", "b"]
    assert entries[0].bytes == [97]
    streamed = client.chat.completions.create(model="model", messages=user("x"), logprobs=True, stream=True)
    found = [chunk.choices[0].logprobs for chunk in streamed]
    assert [entry.token for logprobs in found if logprobs for entry in logprobs.content or []] == [
        "a",
        "b",
        "<|im_end|>",
    ]


def test_stop_strings_and_limits_reach_the_sampler(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    sampler = ScriptedSampler(lambda _: "one two three")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted", default_max_tokens=100))
    create = connect_openai(gateway.open_rollout("r", 1)).chat.completions.create
    assert create(model="model", messages=user("x"), stop=" two").choices[0].message.content == "one"
    cut = create(model="model", messages=user("x"), max_completion_tokens=5).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("one t", "length")
    create(model="model", messages=user("x"), seed=3, extra_body={"top_k": 4}, max_tokens=70)
    create(model="model", messages=user("x"))
    asked = [request.params for request in sampler.requests]
    assert asked[0].stop == (" two",)
    assert (asked[2].seed, asked[2].top_k, asked[2].max_tokens) == (3, 4, 70)
    assert (asked[3].seed, asked[3].top_k, asked[3].max_tokens) == (None, 0, 100)


def test_a_rollouts_overrides_win_over_what_its_agent_asks(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    override = SamplingOverride(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=5)
    create = connect_openai(gateway.open_rollout("r", 1, sampling=override)).chat.completions.create
    for limit in (4, 400):
        create(
            model="model",
            messages=user("x"),
            temperature=0.1,
            top_p=0.2,
            max_tokens=limit,
            seed=1,
            extra_body={"top_k": 3},
        )
    first, second = (request.params for request in sampler.requests)
    assert (first.temperature, first.top_p, first.top_k, first.max_tokens) == (1.0, 1.0, 0, 4)
    assert second.max_tokens == 9
    assert first.seed not in {None, 1, second.seed}
    recorded = gateway_store.calls("r")[0]
    assert (recorded.temperature, recorded.top_p, recorded.top_k) == (1.0, 1.0, 0)
    assert recorded.request["temperature"] == 0.1


def test_the_same_rollout_seed_gives_the_same_seeds_again(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    for rollout, seed in (("a", 5), ("b", 5), ("c", 6)):
        client = connect_openai(gateway.open_rollout(rollout, 1, sampling=SamplingOverride(seed=seed)))
        for _ in range(2):
            client.chat.completions.create(model="model", messages=user("x"))
    seeds = [request.params.seed for request in sampler.requests]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4


def test_a_raw_response_carries_the_call_id(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(echo).open_rollout("r", 1))
    raw = client.chat.completions.with_raw_response.create(
        model="model", messages=user("x"), extra_headers={"x-spangrad-call": "call-7", "x-spangrad-request": "req-3"}
    )
    assert raw.headers["x-request-id"] == "call-7"
    assert raw.parse().choices[0].message.content == "you said x"
    call = only_call(gateway_store)
    assert (call.call_id, call.request_key, call.retry) == ("call-7", "req-3", 0)
