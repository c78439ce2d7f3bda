"""Conversations over the Responses API: their tokens are those of the same conversation over chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from spangrad.gateway import Gateway, RolloutAccess, TokenEngine
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
# As the Agents SDK and LangChain order them: what the model is shown does not depend on it.
CALC: Any = {"name": "calc", "parameters": PARAMETERS, "strict": True, "type": "function", "description": "Computes."}
CHAT_CALC: Any = {
    "type": "function",
    "function": {"description": "Computes.", "name": "calc", "parameters": PARAMETERS},
}
QUESTIONS = ("97+3 and 1+1", "and 2+2")


def solver(prompt: ScriptedPrompt) -> list[str]:
    """Calls calc for every sum in the question, two at once if there are two; then says what came out."""
    last = prompt.messages[-1]
    if last["role"] == "tool":
        return ["That makes ", last["content"], "."]
    sums = [word for word in last["content"].split() if "+" in word]
    calls = [
        f"<tool_call>{json.dumps({'name': 'calc', 'arguments': {'expression': word}})}</tool_call>" for word in sums
    ]
    return ["Let me see. ", *calls]


def calc(arguments: str) -> str:
    return str(sum(int(part) for part in json.loads(arguments)["expression"].split("+")))


async def chat(client: openai.AsyncOpenAI) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be good."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            answer = await client.chat.completions.create(model="model", messages=messages, tools=[CHAT_CALC])
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                assert call.type == "function"
                content = calc(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return message.content or ""


async def ask(client: openai.AsyncOpenAI, *, stream: bool, **fields: Any) -> Any:
    request: dict[str, Any] = {"model": "model", "instructions": "Be good.", "tools": [CALC], **fields}
    if not stream:
        return await client.responses.create(**request)
    async with client.responses.stream(**request) as events:
        return await events.get_final_response()


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": calc(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


async def with_items(client: openai.AsyncOpenAI, *, stream: bool = False) -> str:
    """Sends the whole conversation every time."""
    items: list[Any] = []
    for question in QUESTIONS:
        items.append({"role": "user", "content": question})
        while True:
            response = await ask(client, stream=stream, input=items)
            items += [item.model_dump(exclude_none=True) for item in response.output]
            if not (results := outputs(response)):
                break
            items += results
    return str(response.output_text)


async def streaming(client: openai.AsyncOpenAI) -> str:
    return await with_items(client, stream=True)


async def with_previous(client: openai.AsyncOpenAI) -> str:
    """Sends what is new, and the id of the response before."""
    previous = None
    for question in QUESTIONS:
        new: Any = question
        while new:
            response = await ask(client, stream=False, input=new, previous_response_id=previous)
            new, previous = outputs(response), response.id
    return str(response.output_text)


async def play(access: RolloutAccess, agent: Callable[[openai.AsyncOpenAI], Awaitable[str]]) -> str:
    async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0) as client:
        return await agent(client)


def tokens(calls: list[Call]) -> list[tuple[Any, ...]]:
    """All of a rollout that training sees."""
    return [(call.prompt_ids, call.choices[0].token_ids, call.choices[0].logprobs) for call in calls]


@pytest.mark.parametrize("agent", [with_items, streaming, with_previous])
async def test_a_conversation_has_the_same_tokens_by_either_api(
    make_gateway: MakeGateway, gateway_store: Store, agent: Callable[[openai.AsyncOpenAI], Awaitable[str]]
) -> None:
    gateway = make_gateway(TokenEngine(ScriptedSampler(solver, context_length=8192), ByteChatFormat(), "scripted"))
    assert await play(gateway.open_rollout("chat", 1), chat) == "That makes 4."
    assert await play(gateway.open_rollout("responses", 1), agent) == "That makes 4."
    calls = gateway_store.calls("responses")
    assert len(calls) == 4
    assert tokens(calls) == tokens(gateway_store.calls("chat"))
    turns = [turn["role"] for turn in ByteChatFormat().read(calls[-1].prompt_ids or ())]
    assert turns == ["tools", "system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"]


async def test_eight_rollouts_at_once_own_exactly_their_calls(make_gateway: MakeGateway, gateway_store: Store) -> None:
    gateway = make_gateway(TokenEngine(ScriptedSampler(solver, context_length=8192), ByteChatFormat(), "scripted"))
    agents = [with_items, streaming, with_previous, chat] * 2
    accesses = [gateway.open_rollout(f"rollout-{number}", 1) for number in range(len(agents))]
    said = await asyncio.gather(*(play(access, agent) for access, agent in zip(accesses, agents, strict=True)))
    assert said == ["That makes 4."] * 8
    stored = [gateway_store.calls(access.rollout_id) for access in accesses]
    assert all(tokens(calls) == tokens(stored[0]) for calls in stored)
    assert len({call.call_id for calls in stored for call in calls}) == 32
    assert gateway_store.counts()["calls"] == 32
    assert {call.status for calls in stored for call in calls} == {CallStatus.OK}


def test_a_conversation_can_branch_from_any_response(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda prompt: f"re {prompt.last}").open_rollout("r", 1))
    first = client.responses.create(model="model", input="a", instructions="only for the first")
    for text in ("b", "c"):
        client.responses.create(model="model", input=text, previous_response_id=first.id)
    start = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "re a"}]
    assert [call.prompt_ids for call in gateway_store.calls("r")[1:]] == [
        ByteChatFormat().render([*start, {"role": "user", "content": text}]) for text in ("b", "c")
    ]


@pytest.mark.parametrize("fields", [{"store": False}, {"max_output_tokens": 2}])
def test_an_incomplete_response_can_be_gone_on_from_and_one_not_stored_cannot(
    make_gateway: MakeGateway,
    connect_openai: Callable[..., openai.OpenAI],
    gateway_store: Store,
    fields: dict[str, Any],
) -> None:
    client = connect_openai(make_gateway(lambda _: "hello").open_rollout("r", 1))
    first = client.responses.create(model="model", input="a", **fields)
    if "store" in fields:
        with pytest.raises(openai.BadRequestError, match="not known here"):
            client.responses.create(model="model", input="b", previous_response_id=first.id)
    else:
        client.responses.create(model="model", input="b", previous_response_id=first.id)
        messages = [("user", "a"), ("assistant", "he"), ("user", "b")]
        assert gateway_store.calls("r")[1].prompt_ids == ByteChatFormat().render(
            [{"role": role, "content": content} for role, content in messages]
        )


def test_a_response_is_known_to_its_own_attempt_only(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    gateway = make_gateway(lambda _: "hello")
    first = connect_openai(gateway.open_rollout("r", 1)).responses.create(model="model", input="a")
    for name, attempt in (("r", 2), ("other", 1)):
        client = connect_openai(gateway.open_rollout(name, attempt))
        with pytest.raises(openai.BadRequestError, match="not known here") as caught:
            client.responses.create(model="model", input="b", previous_response_id=first.id)
        assert caught.value.code == "previous_response_not_found"
    (call,) = gateway_store.calls("other")
    assert (call.status, call.request["previous_response_id"]) == (CallStatus.ERROR, first.id)


def test_a_closed_rollout_says_so_whatever_is_asked(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI]
) -> None:
    gateway = make_gateway(lambda _: "hello")
    client = connect_openai(gateway.open_rollout("r", 1))
    first = client.responses.create(model="model", input="a")
    gateway.close_rollout("r", 1).result(timeout=10)
    with pytest.raises(openai.ConflictError, match="is closed"):
        client.responses.create(model="model", input="b", previous_response_id=first.id)


def test_calls_without_a_rollout_have_a_memory_too(
    make_gateway: MakeGateway, connect_openai: Callable[..., openai.OpenAI], gateway_store: Store
) -> None:
    access = make_gateway(lambda _: "hello").open_rollout("r", 1)
    root = access.base_url.partition("/rollouts")[0]
    with openai.OpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(model="model", input="a")
        client.responses.create(model="model", input="b", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="not known here"):
            connect_openai(access).responses.create(model="model", input="b", previous_response_id=first.id)
    assert [call.status for call in gateway_store.calls(None)] == [CallStatus.OK] * 2
