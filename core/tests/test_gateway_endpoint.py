"""The gateway in front of another OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from spangrad.gateway import EndpointEngine, EngineError, Gateway, SamplingOverride
from spangrad.gateway._endpoint_answer import answer_deltas
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedEndpoint, scripted_logprob
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
CALC = {"type": "function", "function": {"name": "calc"}}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"e": "1+1"}'}}


def ask(gateway: Gateway, sampling: SamplingOverride | None = None, **fields: Any) -> httpx.Response:
    access = gateway.open_rollout("r", 1, sampling=sampling)
    body = {"model": "model", "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {"authorization": f"Bearer {access.api_key}"}
    return httpx.post(f"{access.base_url}/chat/completions", json=body, headers=headers, trust_env=False, timeout=30)


def only_call(store: Store) -> Call:
    (call,) = store.calls("r")
    return call


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_ids_and_logprobs_of_the_server_are_recorded(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    with ScriptedEndpoint(lambda _: "hello") as endpoint:
        gateway = make_gateway(EndpointEngine(endpoint.base_url, "real-name", policy_version=3))
        response = ask(gateway, stream=stream)
    if stream:
        pieces = [choice["delta"].get("content") or "" for chunk in streamed(response) for choice in chunk["choices"]]
        assert [piece for piece in pieces if piece] == ["he", "llo"]
    else:
        assert response.json()["choices"][0]["message"]["content"] == "hello"
        assert response.json()["choices"][0]["logprobs"] is None
    prompt = ByteChatFormat().render([{"role": "user", "content": "hi"}])
    sampled = (*b"hello", 257)
    call = only_call(gateway_store)
    assert call.prompt_ids == prompt
    assert call.choices[0].token_ids == sampled
    assert call.choices[0].logprobs == tuple(scripted_logprob(prompt, i, t, 0) for i, t in enumerate(sampled))
    assert (call.endpoint, call.policy_version, call.status) == (endpoint.base_url, 3, CallStatus.OK)
    assert gateway.id_counts()[endpoint.base_url].with_ids == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_without_ids_is_recorded_as_such(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    with ScriptedEndpoint(lambda _: "hello", token_ids=False) as endpoint:
        gateway = make_gateway(EndpointEngine(endpoint.base_url))
        response = ask(gateway, stream=stream, stream_options={"include_usage": True} if stream else None)
    usage = (streamed(response)[-1] if stream else response.json())["usage"]
    assert usage["completion_tokens"] == len(b"hello") + 1
    call = only_call(gateway_store)
    assert (call.prompt_ids, call.choices[0].token_ids, call.choices[0].logprobs) == (None, None, None)
    assert call.choices[0].message["content"] == "hello"
    counts = gateway.id_counts()[endpoint.base_url]
    assert (counts.calls, counts.with_ids) == (1, 0)


def test_the_server_is_asked_with_the_settings_that_count(make_gateway: MakeGateway) -> None:
    with ScriptedEndpoint(lambda _: "x") as endpoint:
        gateway = make_gateway(EndpointEngine(endpoint.base_url, "real-name", "sk-upstream"))
        override = SamplingOverride(temperature=1.0, top_k=0, max_tokens=50)
        ask(
            gateway,
            override,
            temperature=0.1,
            top_k=7,
            max_tokens=400,
            stop=["a"],
            response_format={"type": "json_object"},
        )
    (request,) = endpoint.requests
    assert request.headers["authorization"] == "Bearer sk-upstream"
    assert request.body == {
        "model": "real-name",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": 50,
        "stop": ["a"],
        "response_format": {"type": "json_object"},
        "return_token_ids": True,
        "logprobs": True,
    }


def test_a_server_that_refuses_unknown_fields_is_not_asked_for_ids(make_gateway: MakeGateway) -> None:
    with ScriptedEndpoint(lambda _: "x") as endpoint:
        ask(make_gateway(EndpointEngine(endpoint.base_url, ask_token_ids=False)))
    assert endpoint.requests[0].body.keys() == {"model", "messages", "temperature", "top_p"}


def test_streams_with_tools_are_asked_for_whole_and_streamed_on(
    make_gateway: MakeGateway, gateway_store: Store
) -> None:
    def reply(_: object) -> dict[str, Any]:
        return {"role": "assistant", "content": "so", "tool_calls": [TOOL_CALL], "reasoning_content": "hm"}

    with ScriptedEndpoint(reply) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url)), stream=True, tools=[CALC])
    assert "stream" not in endpoint.requests[0].body
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(response)]
    assert {"content": "so", "reasoning_content": "hm"} in deltas
    assert {"tool_calls": [{**TOOL_CALL, "index": 0}]} in deltas
    call = only_call(gateway_store)
    assert call.choices[0].finish_reason == "tool_calls"
    assert call.choices[0].message["reasoning_content"] == "hm"
    assert call.choices[0].token_ids is not None


@pytest.mark.parametrize(("status", "passed_on"), [(429, 429), (500, 500), (400, 400), (401, 502), (404, 404)])
def test_the_servers_errors_are_passed_on_with_their_status(
    make_gateway: MakeGateway, gateway_store: Store, status: int, passed_on: int
) -> None:
    with ScriptedEndpoint(lambda _: "x", fail_first=1, fail_status=status) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url)))
    assert response.status_code == passed_on
    assert response.json()["error"]["code"] == "scripted_failure"
    assert f"{endpoint.base_url} answered {status}: as ordered" in response.json()["error"]["message"]
    assert response.headers.get("retry-after-ms") == ("1" if status == 429 else None)
    assert only_call(gateway_store).status is CallStatus.ERROR


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_breaks_off_is_a_bad_gateway(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    with ScriptedEndpoint(lambda _: "hello", break_off=True) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url)), stream=stream)
    assert response.status_code == (200 if stream else 502)
    assert "broke off" in response.text
    assert "[DONE]" not in response.text
    call = only_call(gateway_store)
    assert call.status is CallStatus.ERROR
    assert [choice.message["content"] for choice in call.choices] == (["he"] if stream else [])


def test_a_server_that_is_not_there_is_a_bad_gateway(make_gateway: MakeGateway) -> None:
    with ScriptedEndpoint(lambda _: "x") as endpoint:
        url = endpoint.base_url
    response = ask(make_gateway(EndpointEngine(url)))
    assert response.status_code == 502
    assert "Check that it runs" in response.json()["error"]["message"]


def test_a_silent_server_is_a_gateway_timeout(make_gateway: MakeGateway) -> None:
    with ScriptedEndpoint(lambda _: "x", delay=1.0) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url, timeout=0.1)))
    assert response.status_code == 504


@pytest.mark.parametrize(
    "body", [{}, {"choices": 5}, {"choices": [{}]}, {"choices": [{"index": 0, "message": "x"}]}, {"choices": None}]
)
def test_an_answer_in_another_shape_is_a_bad_gateway(body: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="not in OpenAI's shape") as caught:
        list(answer_deltas(body, None))
    assert caught.value.status == 502
