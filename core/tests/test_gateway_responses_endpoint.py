"""The Responses API in front of a server that only has chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from spangrad.backend import SamplingParams
from spangrad.gateway import EndpointEngine, EngineDelta, Gateway
from spangrad.gateway._answer import Answer
from spangrad.gateway._responses_object import response_frame
from spangrad.gateway._responses_wire import ResponsesWire
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedEndpoint
from spangrad.transitions import CallStatus

MakeGateway = Callable[..., Gateway]
CALC = {"type": "function", "name": "calc", "parameters": {"type": "object"}}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"e": "1+1"}'}}


def ask(gateway: Gateway, **fields: Any) -> httpx.Response:
    access = gateway.open_rollout("r", 1)
    body = {"model": "model", "input": "hi", **fields}
    headers = {"authorization": f"Bearer {access.api_key}"}
    return httpx.post(f"{access.base_url}/responses", json=body, headers=headers, trust_env=False, timeout=30)


def events_of(text: str) -> list[dict[str, Any]]:
    """A stream's events; each is named as its data says, and they are numbered from 0."""
    events = []
    for number, block in enumerate(text.strip().split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, number) == (f"event: {event['type']}", event["sequence_number"])
        events.append(event)
    return events


@pytest.mark.parametrize("stream", [False, True])
def test_the_server_is_asked_for_a_chat_completion_and_its_ids_are_recorded(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    form = {"type": "json_schema", "name": "out", "schema": {"type": "object"}}
    with ScriptedEndpoint(lambda _: "hello") as endpoint:
        gateway = make_gateway(EndpointEngine(endpoint.base_url, "real-name"))
        response = ask(gateway, instructions="Be good.", max_output_tokens=50, text={"format": form}, stream=stream)
    (request,) = endpoint.requests
    assert request.path == "/v1/chat/completions"
    messages = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "hi"}]
    asked = {
        "model": "real-name",
        "messages": messages,
        "max_completion_tokens": 50,
        "response_format": {"type": "json_schema", "json_schema": {"name": "out", "schema": {"type": "object"}}},
        "temperature": 1.0,
        "top_p": 1.0,
        "return_token_ids": True,
        "logprobs": True,
    }
    assert request.body == (asked | {"stream": True, "stream_options": {"include_usage": True}} if stream else asked)
    answer = events_of(response.text)[-1]["response"] if stream else response.json()
    assert answer["output"][0]["content"][0]["text"] == "hello"
    assert answer["usage"]["output_tokens"] == len(b"hello") + 1
    (call,) = gateway_store.calls("r")
    assert call.status is CallStatus.OK
    assert call.prompt_ids == ByteChatFormat().render(messages)
    assert call.choices[0].token_ids == (*b"hello", 257)
    assert call.request["input"] == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_says_it_thought_is_a_reasoning_item(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    reply = {"role": "assistant", "content": "so", "tool_calls": [TOOL_CALL], "reasoning_content": "hm"}
    with ScriptedEndpoint(lambda _: reply) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url)), tools=[CALC], stream=stream)
    answer = events_of(response.text)[-1]["response"] if stream else response.json()
    (call,) = gateway_store.calls("r")
    assert answer["output"] == [
        {
            "id": f"rs_{call.call_id}",
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "id": f"msg_{call.call_id}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": []}],
        },
        {
            "id": f"fc_{call.call_id}_0",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "calc",
            "arguments": '{"e": "1+1"}',
        },
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_breaks_off_is_an_error_to_the_agent(
    make_gateway: MakeGateway, gateway_store: Store, stream: bool
) -> None:
    with ScriptedEndpoint(lambda _: "hello", break_off=True) as endpoint:
        response = ask(make_gateway(EndpointEngine(endpoint.base_url)), stream=stream)
    assert response.status_code == (200 if stream else 502)
    if stream:
        error = events_of(response.text)[-1]
        assert error["type"] == "error"
        assert "broke off" in error["message"]
        assert error["error"]["message"] == error["message"]
    (call,) = gateway_store.calls("r")
    assert call.status is CallStatus.ERROR


@pytest.mark.parametrize(
    ("deltas", "kinds"),
    [
        ([{"reasoning_content": "h"}, {"reasoning_content": "m"}, "a", "b"], ["reasoning", "message"]),
        (["a", {"reasoning": "hm"}, "b"], ["message", "reasoning"]),
        (["a", "b"], ["message"]),
        ([], ["message"]),
    ],
)
def test_streamed_pieces_add_up_to_the_items_of_the_whole(deltas: list[Any], kinds: list[str]) -> None:
    wire = ResponsesWire(
        "c", response_frame("c", 1.0, {"model": "m"}, SamplingParams()), logprobs=False, token_ids=False
    )
    answer, data = Answer(), b""
    for piece in [*deltas, None]:
        text = piece if isinstance(piece, str) else ""
        extra = piece if isinstance(piece, dict) else {}
        delta = EngineDelta(text=text, extra=extra, finish_reason="stop" if piece is None else None)
        answer.add(delta)
        data += wire.progress(delta)
    events = events_of((data + wire.ending(answer)).decode())
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == kinds
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert [own[0]["type"], own[-1]["type"]] == ["response.output_item.added", "response.output_item.done"]
        assert own[0]["item"]["id"] == own[-1]["item"]["id"] == item["id"]
        assert own[-1]["item"] == item
        text = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert text == item["content"][0]["text"] == next(e["text"] for e in own if e["type"].endswith("text.done"))
