"""Streamed responses as real openai clients read them, whole, broken and closed early; and what the store then holds."""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from spangrad.errors import BackendError
from spangrad.gateway import Gateway, RolloutAccess, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
CALC: Any = {"type": "function", "name": "calc", "parameters": {"type": "object"}, "strict": True}
CALL_TEXT = '<tool_call>{"name": "calc", "arguments": {"expression": "97+3"}}</tool_call>'
EVENTS: dict[str, type[BaseModel]] = {
    typing.get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
}
"""OpenAI's own types of the events."""


class Size(BaseModel):
    width: int


def only_call(store: Store, rollout_id: str = "r") -> Call:
    (call,) = store.calls(rollout_id)
    return call


def raw_events(access: RolloutAccess, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each valid as OpenAI's own type, named in its header and numbered from 0."""
    headers = {"authorization": f"Bearer {access.api_key}"}
    body = {"model": "model", "input": "x", "stream": True, **fields}
    response = httpx.post(f"{access.base_url}/responses", json=body, headers=headers, trust_env=False, timeout=30)
    events = []
    for number, block in enumerate(response.text.strip().split("\n\n")):
        name, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENTS[event["type"]].model_validate_json(data.removeprefix("data: "), strict=True)
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        events.append(event)
    return events


def test_a_text_arrives_piece_by_piece_in_openais_events(make_gateway: MakeGateway, gateway_store: Store) -> None:
    events = raw_events(make_gateway(lambda _: ["one ", "two ", "three"]).open_rollout("r", 1))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["delta"] for event in events if "delta" in event] == ["one ", "two ", "three"]
    call = only_call(gateway_store)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "one two three"
    assert events[-1]["response"]["usage"]["output_tokens"] == len(call.choices[0].token_ids or ())
    assert {event["response"]["id"] for event in events if "response" in event} == {f"resp_{call.call_id}"}


def test_a_text_with_two_function_calls_has_three_items(make_gateway: MakeGateway) -> None:
    access = make_gateway(lambda _: ["Let me ", "see. ", CALL_TEXT, CALL_TEXT]).open_rollout("r", 1)
    events = raw_events(access, tools=[CALC], include=["message.output_text.logprobs"], top_logprobs=2)
    kinds = [(event["type"].removeprefix("response."), event.get("output_index")) for event in events]
    function = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds[-9:] == [*((kind, 1) for kind in function), *((kind, 2) for kind in function), ("completed", None)]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [delta["delta"] for delta in deltas] == ["Let me", " see."]
    # The space behind "me" was sampled with the first piece, and may only be shown with the second.
    assert ["".join(entry["token"] for entry in delta["logprobs"]) for delta in deltas] == ["Let me ", "see. "]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[1]["call_id"] != output[2]["call_id"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({"max_output_tokens": 2}, "response.incomplete"),
        ({"tools": [CALC], "tool_choice": "none"}, "response.completed"),
        ({"input": "empty"}, "response.completed"),
        ({"input": "fail"}, "error"),
    ],
)
def test_every_way_a_stream_ends_is_of_openais_shape(
    make_gateway: MakeGateway, fields: dict[str, Any], last: str
) -> None:
    def script(prompt: ScriptedPrompt) -> list[str | Exception]:
        if prompt.last == "empty":
            return [""]
        return ["half", BackendError("out of memory")] if prompt.last == "fail" else ["one ", "two"]

    assert raw_events(make_gateway(script).open_rollout("r", 1), **fields)[-1]["type"] == last


def test_the_stream_helper_puts_the_answer_together(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    client = connect_openai(make_gateway(lambda _: ["Let me see. ", CALL_TEXT]).open_rollout("r", 1))
    with client.responses.stream(model="model", input="97+3?", tools=[CALC]) as stream:
        snapshots = {event.type: event.snapshot for event in stream if hasattr(event, "snapshot")}
        final = stream.get_final_response()
    assert snapshots == {
        "response.output_text.delta": "Let me see.",
        "response.function_call_arguments.delta": '{"expression": "97+3"}',
    }
    assert final.output_text == "Let me see."
    function_call = final.output[1]
    assert function_call.type == "function_call"
    assert function_call.parsed_arguments == {"expression": "97+3"}


def test_the_stream_helper_parses_an_answer(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    client = connect_openai(make_gateway(lambda _: ['{"width"', ": 5}"]).open_rollout("r", 1))
    with client.responses.stream(model="model", input="x", text_format=Size) as stream:
        assert stream.get_final_response().output_parsed == Size(width=5)


def test_text_reaches_the_agent_while_the_rest_is_still_sampled(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    release = asyncio.Event()
    gateway = make_gateway(lambda _: ["early ", release.wait, "late"])
    client = connect_openai(gateway.open_rollout("r", 1), timeout=30)
    stream = client.responses.create(model="model", input="go", stream=True)
    assert next(event.delta for event in stream if event.type == "response.output_text.delta") == "early "
    loop = gateway._server.loop
    assert loop is not None
    loop.call_soon_threadsafe(release.set)
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == "late"


def test_a_stream_closed_early_is_undelivered_and_its_sampling_stops(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    sampler = ScriptedSampler(lambda _: ["early ", asyncio.Event().wait, "never"])
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    client = connect_openai(gateway.open_rollout("r", 1))
    with client.responses.create(model="model", input="go", stream=True) as stream:
        assert next(event.delta for event in stream if event.type == "response.output_text.delta") == "early "
    tally = gateway.close_rollout("r", 1).result(timeout=10)
    call = only_call(gateway_store)
    assert (tally.answered, call.status, call.choices[0].token_ids) == (0, CallStatus.UNDELIVERED, tuple(b"early "))
    assert sampler.finished == 0


def test_an_engine_that_fails_in_the_middle_of_a_stream_raises_in_the_agent(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: ["half", BackendError("out of memory")]).open_rollout("r", 1))
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="out of memory"):
        seen.extend(event.type for event in client.responses.create(model="model", input="x", stream=True))
    assert seen[-1] == "response.output_text.delta"
    call = only_call(gateway_store)
    assert (call.status, call.reason) == (CallStatus.ERROR, "out of memory")
    assert call.choices[0].token_ids == tuple(b"half")


def test_the_call_is_in_the_store_when_the_stream_completes_an_item(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda _: "hi").open_rollout("r", 1))
    for event in client.responses.create(model="model", input="x", stream=True):
        if event.type == "response.output_text.done":
            assert only_call(gateway_store).status is CallStatus.OK
            break
    else:
        pytest.fail("the stream completed no item")
