"""The gateway in front of a server that is given token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from spangrad.backend import SampleRequest, SamplingParams
from spangrad.gateway import EndpointSampler, EngineError, Gateway, RolloutAccess, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedEndpoint, scripted_logprob
from spangrad.transitions import Call, CallStatus, Continuation, Continuity

MakeGateway = Callable[..., Gateway]
MakeServer = Callable[..., tuple[ScriptedEndpoint, RolloutAccess]]
FORMAT = ByteChatFormat()
QUESTION = {"role": "user", "content": "1+1?"}
CALC = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}


@pytest.fixture
def serve(make_gateway: MakeGateway) -> Any:
    """Starts a server and a gateway in front of it, and opens the rollout "r"."""
    with ExitStack() as running:

        def start(reply: Callable[[Mapping[str, Any]], str], **faults: Any) -> tuple[ScriptedEndpoint, RolloutAccess]:
            endpoint = running.enter_context(ScriptedEndpoint(reply, **faults))
            sampler = EndpointSampler(endpoint.base_url, "real-name", "key", context_length=4096, policy_version=3)
            engine = TokenEngine(sampler, FORMAT, sampler.url, on_close=sampler.close)
            return endpoint, make_gateway(engine).open_rollout("r", 1)

        yield start


def ask(access: RolloutAccess, *messages: Any, **fields: Any) -> httpx.Response:
    body = {"model": "model", "messages": messages, **fields}
    headers = {"authorization": f"Bearer {access.api_key}"}
    return httpx.post(f"{access.base_url}/chat/completions", json=body, headers=headers, trust_env=False, timeout=30)


def calculating(body: Mapping[str, Any]) -> str:
    """Calls calc in white space that no template writes; then says what it got."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"It is {last['content']}."
    return '<tool_call>\n{"name": "calc", "arguments": {"a":  1}}\n</tool_call>'


def test_it_is_given_the_prompts_tokens_and_the_settings_that_count(serve: MakeServer) -> None:
    endpoint, access = serve(lambda _: "hello")
    ask(access, QUESTION, temperature=0.5, top_p=0.9, top_k=7, max_tokens=20, seed=4, stop=["x", "y"])
    (request,) = endpoint.requests

    assert request.path == "/v1/completions"
    assert request.headers["authorization"] == "Bearer key"
    assert request.body == {
        "model": "real-name",
        "prompt": list(FORMAT.render([QUESTION])),
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 20,
        "seed": 4,
        "stop": ["x", "y"],
        "n": 1,
        "logprobs": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_its_tokens_are_recorded(serve: MakeServer, gateway_store: Store, stream: bool) -> None:
    endpoint, access = serve(lambda body: f"hello {body['choice']}")
    response = ask(access, QUESTION, n=2, stream=stream)
    assert response.status_code == 200
    (call,) = gateway_store.calls("r")

    prompt = FORMAT.render([QUESTION])
    assert (call.prompt_ids, call.policy_version, call.endpoint) == (prompt, 3, endpoint.base_url)
    for index, choice in enumerate(call.choices):
        sampled = (*f"hello {index}".encode(), FORMAT.end_id)
        assert choice.token_ids == sampled
        assert choice.logprobs == tuple(scripted_logprob(prompt, at, token, 0) for at, token in enumerate(sampled))
        assert (choice.message["content"], choice.finish_reason) == (f"hello {index}", "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_turn_goes_on_from_the_tokens_that_the_server_sampled(
    serve: MakeServer, gateway_store: Store, stream: bool
) -> None:
    endpoint, access = serve(calculating)
    called = ask(access, QUESTION, tools=[CALC]).json()["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": called["message"]["tool_calls"][0]["id"], "content": "2"}
    assert ask(access, QUESTION, called["message"], result, tools=[CALC], stream=stream).status_code == 200

    one, two = gateway_store.calls("r")
    before = whole(one)
    where = len(one.prompt_ids or ()) + len("<tool_call>")
    assert two.continuation == Continuation(Continuity.RESPELLED, one.call_id, one.call_id, where)
    assert tuple(endpoint.requests[1].body["prompt"]) == two.prompt_ids
    assert two.prompt_ids is not None
    assert two.prompt_ids[: len(before)] == before
    assert two.choices[0].message["content"] == "It is 2."


def whole(call: Call) -> tuple[int, ...]:
    return (*(call.prompt_ids or ()), *(call.choices[0].token_ids or ()))


def test_a_stop_string_ends_the_answer_and_its_tokens_stay(serve: MakeServer, gateway_store: Store) -> None:
    _, access = serve(lambda _: "one. two.")
    choice = ask(access, QUESTION, stop=["."]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
    (call,) = gateway_store.calls("r")
    assert call.choices[0].token_ids == tuple(b"one.")


def test_the_likeliest_tokens_are_passed_on(serve: MakeServer) -> None:
    _, access = serve(lambda _: "a")
    content = ask(access, QUESTION, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    first = scripted_logprob(FORMAT.render([QUESTION]), 0, ord("a"), 0)
    # The scripted sampler's second is the next byte, one less likely.
    assert [(top["token"], top["logprob"]) for top in content[0]["top_logprobs"]] == [("a", first), ("b", first - 1)]
    assert content[0]["logprob"] == first


@pytest.mark.parametrize(
    ("faults", "status", "words"),
    [
        ({"token_ids": False}, 502, "not in the shape of completions with token ids"),
        ({"fail_first": 1, "fail_status": 503}, 503, "answered 503: as ordered"),
        ({"fail_first": 1, "fail_status": 401}, 502, "answered 401: as ordered"),
        ({"break_off": True}, 502, "broke off"),
    ],
    ids=["no ids", "busy", "wrong key", "broken off"],
)
def test_its_troubles_are_told_and_recorded(
    serve: MakeServer, gateway_store: Store, faults: dict[str, Any], status: int, words: str
) -> None:
    _, access = serve(lambda _: "hello", **faults)
    response = ask(access, QUESTION)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    (call,) = gateway_store.calls("r")
    assert call.status is CallStatus.ERROR
    assert words in call.reason


def test_a_prompt_longer_than_the_context_is_refused_before_it_is_sent(serve: MakeServer) -> None:
    endpoint, access = serve(lambda _: "hello")
    response = ask(access, {"role": "user", "content": "x" * 5000})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert endpoint.requests == []


def chunk(**choice: Any) -> dict[str, Any]:
    told = {"index": 0, "text": "a", "token_ids": [97], "logprobs": {"token_logprobs": [-1.0]}, **choice}
    return {"choices": [told]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (chunk(prompt_token_ids=[1, 2]), "changed the prompt's tokens"),
        (chunk(finish_reason="abort"), "ended an answer with 'abort'"),
        (chunk(logprobs=None), "1 token ids with 0 log-probabilities"),
        (chunk(token_ids=None), "0 token ids with 1 log-probabilities"),
        (chunk(token_ids=None, logprobs=None), "token ids"),
        (chunk(index=None, logprobs={"token_logprobs": [None]}), "not in the shape"),
        (chunk(index=1), "not in the shape"),
        (chunk() | {"usage": {"completion_tokens": 2}}, "sent 1 of 2 tokens"),
        ({"choices": [], "usage": {"completion_tokens": 1}}, "sent 0 of 1 tokens"),
        ({"choices": [{"text": "a"}]}, "not in the shape"),
        ({"object": "x"}, "KeyError('choices')"),
        ({"choices": 3}, "not in the shape"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_an_error(answer: dict[str, Any], words: str) -> None:
    sampler = EndpointSampler("http://127.0.0.1:9/v1", "m", context_length=10, policy_version=0)
    with pytest.raises(EngineError) as caught:
        sampler._deltas(answer, SampleRequest((1,), SamplingParams()), [0])
    assert words in str(caught.value)
    assert caught.value.status == 502


def test_chunks_without_choices_say_nothing() -> None:
    sampler = EndpointSampler("http://127.0.0.1:9/v1", "m", context_length=10, policy_version=0)
    assert sampler._deltas({"choices": [], "usage": {}}, SampleRequest((1,), SamplingParams()), [0]) == []


def test_tokens_are_counted_for_each_choice_and_in_the_end_together() -> None:
    sampler = EndpointSampler("http://127.0.0.1:9/v1", "m", context_length=10, policy_version=0)
    request, counts = SampleRequest((1,), SamplingParams(), choices=2), [0, 0]
    for index, tokens in ((0, 1), (1, 1), (0, 2)):
        sampler._deltas(chunk(index=index) | {"usage": {"completion_tokens": tokens}}, request, counts)
    assert sampler._deltas({"choices": [], "usage": {"completion_tokens": 3}}, request, counts) == []
    with pytest.raises(EngineError, match="sent 2 of 3 tokens"):
        sampler._deltas(chunk(index=1) | {"usage": {"completion_tokens": 3}}, request, counts)
