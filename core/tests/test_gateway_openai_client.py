"""The gateway as real openai clients see it: answers, streams, tools, errors; and what the store then holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from spangrad.errors import BackendError
from spangrad.gateway import Gateway, RolloutAccess, SamplingOverride, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler, scripted_logprob
from spangrad.transitions import Call, CallStatus

if TYPE_CHECKING:
    import openai
else:
    openai = pytest.importorskip("openai", reason="core does not depend on it")

pytestmark = pytest.mark.openai_client

MakeGateway = Callable[..., Gateway]
CALC: Any = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
CALL_TEXT = '<tool_call>{"name": "calc", "arguments": {"expression": "97+3"}}</tool_call>'


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def echo(prompt: ScriptedPrompt) -> str:
    return f"you said {prompt.last}"


@pytest.fixture
def connect() -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes openai clients for a rollout."""
    clients: list[openai.OpenAI] = []

    def make(access: RolloutAccess, **options: Any) -> openai.OpenAI:
        options = {"max_retries": 0} | options
        clients.append(openai.OpenAI(base_url=access.base_url, api_key=access.api_key, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def only_call(store: Store, rollout_id: str = "r") -> Call:
    (call,) = store.calls(rollout_id)
    return call


def test_an_answer_and_its_record_agree_on_every_token(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(echo).open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    create = connect(make_gateway(echo).open_rollout("r", 1)).chat.completions.create
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


def test_a_stream_arrives_piece_by_piece_with_role_usage_and_ids(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda _: ["one ", "two ", "three"]).open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]
) -> None:
    release = asyncio.Event()
    gateway = make_gateway(lambda _: ["early ", release.wait, "late"])
    client = connect(gateway.open_rollout("r", 1), timeout=30)
    stream = client.chat.completions.create(model="model", messages=user("go"), stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content == "early "
    loop = gateway._server.loop
    assert loop is not None
    loop.call_soon_threadsafe(release.set)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "late"


def test_a_stream_closed_early_is_undelivered_and_its_sampling_stops(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    sampler = ScriptedSampler(lambda _: ["early ", asyncio.Event().wait, "never"])
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    client = connect(gateway.open_rollout("r", 1))
    with client.chat.completions.create(model="model", messages=user("go"), stream=True) as stream:
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "early "]
    tally = gateway.close_rollout("r", 1).result(timeout=10)
    call = only_call(gateway_store)
    assert (tally.answered, call.status, call.choices[0].token_ids) == (0, CallStatus.UNDELIVERED, tuple(b"early "))
    assert sampler.finished == 0


def test_a_client_that_times_out_and_retries_leaves_an_undelivered_call_and_a_good_one(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    waits: Iterator[Callable[[], Any]] = iter([asyncio.Event().wait, lambda: asyncio.sleep(0)])
    gateway = make_gateway(lambda _: [next(waits), "at last"])
    client = connect(gateway.open_rollout("r", 1), timeout=2.0, max_retries=1)
    answer = client.chat.completions.create(model="model", messages=user("x"))
    assert answer.choices[0].message.content == "at last"
    gateway.close_rollout("r", 1).result(timeout=10)
    calls = gateway_store.calls("r")
    assert [(call.status, call.retry) for call in calls] == [(CallStatus.UNDELIVERED, 0), (CallStatus.OK, 1)]


def test_the_stream_helper_puts_the_answer_together(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]
) -> None:
    client = connect(make_gateway(lambda _: ["Let me see. ", CALL_TEXT]).open_rollout("r", 1))
    with client.chat.completions.stream(model="model", messages=user("97+3?"), tools=[CALC]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "Let me see."
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"expression": "97+3"}
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_in_the_text_becomes_an_openai_tool_call(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store, stream: bool
) -> None:
    pieces = ["I'll compute", " <tool", CALL_TEXT[len("<tool") : 40], CALL_TEXT[40:]]
    client = connect(make_gateway(lambda _: pieces).open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]
) -> None:
    client = connect(make_gateway(lambda _: ["<tool_call>{oops", "</tool_call>"]).open_rollout("r", 1))
    for stream in (False, True):
        options: Any = {"model": "model", "messages": user("x"), "tools": [CALC]}
        if stream:
            chunks = client.chat.completions.create(stream=True, **options)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = client.chat.completions.create(**options).choices[0].message.content
        assert text == "<tool_call>{oops</tool_call>"


def test_tools_hidden_by_the_tool_choice_are_not_called(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda _: CALL_TEXT).open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("x"), tools=[CALC], tool_choice="none")
    assert answer.choices[0].message.content == CALL_TEXT
    assert answer.choices[0].message.tool_calls is None
    assert only_call(gateway_store).prompt_ids == ByteChatFormat().render(user("x"))


def test_several_choices_are_one_call(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda prompt: f"choice {prompt.choice}").open_rollout("r", 1))
    answer = client.chat.completions.create(model="model", messages=user("x"), n=3)
    assert [choice.message.content for choice in answer.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [choice.token_ids for choice in only_call(gateway_store).choices] == [
        (*f"choice {index}".encode(), 257) for index in range(3)
    ]


def test_logprobs_are_those_of_the_sampled_tokens(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda _: "ab").open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]
) -> None:
    sampler = ScriptedSampler(lambda _: "one two three")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted", default_max_tokens=100))
    create = connect(gateway.open_rollout("r", 1)).chat.completions.create
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    override = SamplingOverride(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=5)
    create = connect(gateway.open_rollout("r", 1, sampling=override)).chat.completions.create
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    for rollout, seed in (("a", 5), ("b", 5), ("c", 6)):
        client = connect(gateway.open_rollout(rollout, 1, sampling=SamplingOverride(seed=seed)))
        for _ in range(2):
            client.chat.completions.create(model="model", messages=user("x"))
    seeds = [request.params.seed for request in sampler.requests]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4


def test_a_raw_response_carries_the_call_id(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(echo).open_rollout("r", 1))
    raw = client.chat.completions.with_raw_response.create(
        model="model", messages=user("x"), extra_headers={"x-spangrad-call": "call-7", "x-spangrad-request": "req-3"}
    )
    assert raw.headers["x-request-id"] == "call-7"
    assert raw.parse().choices[0].message.content == "you said x"
    call = only_call(gateway_store)
    assert (call.call_id, call.request_key, call.retry) == ("call-7", "req-3", 0)


def test_retries_after_a_failure_are_calls_of_their_own_with_one_request_key(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    answers: Iterator[str | Exception] = iter([BackendError("out of memory"), BackendError("again"), "at last"])
    client = connect(make_gateway(lambda _: next(answers)).open_rollout("r", 1), max_retries=2)
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
        ({"response_format": {"type": "json_object"}}, ("BadRequestError", "unsupported_parameter", "response_format")),
        ({"tools": [CALC], "tool_choice": "required"}, ("BadRequestError", None, "tool choice 'required'")),
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(echo).open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda _: ValueError("a bug")).open_rollout("r", 1))
    with pytest.raises(openai.InternalServerError, match="ValueError: a bug"):
        client.chat.completions.create(model="model", messages=user("x"))
    assert only_call(gateway_store).status is CallStatus.ERROR


def test_an_engine_that_fails_in_the_middle_of_a_stream_ends_it_with_an_error(
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(lambda _: ["half", BackendError("out of memory")]).open_rollout("r", 1))
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
    make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect(make_gateway(echo).open_rollout("r", 1))
    for chunk in client.chat.completions.create(model="model", messages=user("x"), stream=True):
        if chunk.choices[0].finish_reason:
            assert only_call(gateway_store).status is CallStatus.OK
            break
    else:
        pytest.fail("the stream named no finish reason")


def test_the_models_are_the_routed_aliases(make_gateway: MakeGateway, connect: Callable[..., openai.OpenAI]) -> None:
    client = connect(make_gateway(echo).open_rollout("r", 1))
    assert [model.id for model in client.models.list()] == ["model"]
    assert client.models.retrieve("model").id == "model"
    with pytest.raises(openai.NotFoundError, match="Ask for one of: model"):
        client.models.retrieve("other")
