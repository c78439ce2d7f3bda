"""Where prompts came from, of conversations that real openai clients hold over HTTP; and what the store then says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

from spangrad.gateway import EndpointEngine, Gateway
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, ScriptedEndpoint, ScriptedPrompt
from spangrad.transitions import Call, Continuation, Continuity

MakeGateway = Callable[..., Gateway]
Connect = Callable[..., openai.OpenAI]
CALC: Any = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
QUESTION: Any = {"role": "user", "content": "1+1?"}
MORE: Any = {"role": "user", "content": "And 2+2?"}


def tool_user(prompt: ScriptedPrompt) -> list[str]:
    """Calls calc with more white space than any template writes, then says what it got; in small pieces."""
    if prompt.messages[-1]["role"] == "tool":
        return list(f"It is {prompt.last}.")
    return list('<tool_call>\n{"name": "calc",  "arguments": {"a":   1}}\n</tool_call>')


def calls_of(store: Store) -> list[Call]:
    return store.calls("r")


def whole(call: Call, choice: int = 0) -> tuple[int, ...]:
    """A call's tokens."""
    ids = call.choices[choice].token_ids
    assert call.prompt_ids is not None
    assert ids is not None
    return (*call.prompt_ids, *ids)


def begins_with(call: Call, ids: Sequence[int]) -> bool:
    assert call.prompt_ids is not None
    return call.prompt_ids[: len(ids)] == tuple(ids)


def answer(client: openai.OpenAI, messages: list[Any], *, stream: bool) -> Any:
    fields: dict[str, Any] = {"model": "model", "messages": messages, "tools": [CALC]}
    if not stream:
        return client.chat.completions.create(**fields).choices[0].message
    with client.chat.completions.stream(**fields) as events:
        return events.get_final_completion().choices[0].message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_chat_with_tools_goes_on_token_for_token(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store, stream: bool
) -> None:
    client = connect_openai(make_gateway(tool_user).open_rollout("r", 1))
    messages: list[Any] = [QUESTION]
    for _ in range(2):
        said = answer(client, messages, stream=stream)
        call = said.tool_calls[0]
        messages += [said.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "2"}]
        messages += [answer(client, messages, stream=stream).model_dump(), MORE]

    one, two, three, four = calls_of(gateway_store)
    assert [call.continuation for call in (one, three)] == [
        Continuation(Continuity.FIRST),
        Continuation(Continuity.EXTENDED, two.call_id, two.call_id),
    ]
    # The template writes no line break behind <tool_call>, where one was sampled.
    for earlier, later in ((one, two), (three, four)):
        assert earlier.prompt_ids is not None
        where = len(earlier.prompt_ids) + len("<tool_call>")
        assert later.continuation == Continuation(Continuity.RESPELLED, earlier.call_id, earlier.call_id, where)
    for earlier, later in ((one, two), (two, three), (three, four)):
        assert begins_with(later, whole(earlier))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("remembered", [False, True], ids=["with items", "with a previous response"])
def test_responses_go_on_token_for_token(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store, remembered: bool, stream: bool
) -> None:
    client = connect_openai(make_gateway(tool_user).open_rollout("r", 1))
    tool = {"type": "function", **CALC["function"], "strict": False}

    def respond(**fields: Any) -> Any:
        request: dict[str, Any] = {"model": "model", "tools": [tool], **fields}
        if not stream:
            return client.responses.create(**request)
        with client.responses.stream(**request) as events:
            return events.get_final_response()

    first = respond(input=[QUESTION])
    called = next(item for item in first.output if item.type == "function_call")
    added = {"type": "function_call_output", "call_id": called.call_id, "output": "2"}
    if remembered:
        respond(input=[added], previous_response_id=first.id)
    else:
        respond(input=[QUESTION, *(item.model_dump(exclude_none=True) for item in first.output), added])

    one, two = calls_of(gateway_store)
    assert two.continuation is not None
    assert (two.continuation.continuity, two.continuation.continued_from) == (Continuity.RESPELLED, one.call_id)
    assert begins_with(two, whole(one))


def test_a_conversation_may_go_on_over_the_other_api(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda prompt: f"{len(prompt.messages)}").open_rollout("r", 1))
    said = client.chat.completions.create(model="model", messages=[QUESTION]).choices[0].message
    client.responses.create(model="model", input=[QUESTION, {"role": "assistant", "content": said.content or ""}, MORE])

    one, two = calls_of(gateway_store)
    assert two.continuation == Continuation(Continuity.EXTENDED, one.call_id, one.call_id)
    assert begins_with(two, whole(one))


def test_each_of_several_choices_can_be_gone_on_from(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store
) -> None:
    client = connect_openai(make_gateway(lambda prompt: f"choice {prompt.choice}").open_rollout("r", 1))
    choices = client.chat.completions.create(model="model", messages=[QUESTION], n=3).choices
    for choice in reversed(choices):
        told: Any = choice.message.model_dump()
        client.chat.completions.create(model="model", messages=[QUESTION, told, MORE])

    one, *further = calls_of(gateway_store)
    for index, call in zip((2, 1, 0), further, strict=True):
        assert call.continuation == Continuation(Continuity.EXTENDED, one.call_id, one.call_id)
        assert begins_with(call, whole(one, index))


def test_what_was_said_to_another_attempt_or_rollout_is_not_gone_on_from(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store
) -> None:
    gateway = make_gateway(lambda _: "2")
    said: Any = (
        connect_openai(gateway.open_rollout("other", 1))
        .chat.completions.create(model="model", messages=[QUESTION])
        .choices[0]
        .message.model_dump()
    )
    connect_openai(gateway.open_rollout("r", 1)).chat.completions.create(model="model", messages=[QUESTION, said, MORE])

    (call,) = calls_of(gateway_store)
    assert call.continuation == Continuation(Continuity.FIRST)


@pytest.mark.parametrize("token_ids", [True, False], ids=["with ids", "without ids"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_server_that_takes_messages_renders_its_prompts_itself(
    make_gateway: MakeGateway, connect_openai: Connect, gateway_store: Store, token_ids: bool, stream: bool
) -> None:
    with ScriptedEndpoint(lambda _: "hello", token_ids=token_ids) as endpoint:
        client = connect_openai(make_gateway(EndpointEngine(endpoint.base_url)).open_rollout("r", 1))
        fields: dict[str, Any] = {"model": "model", "messages": [QUESTION]}
        if stream:
            with client.chat.completions.stream(**fields) as events:
                events.until_done()
        else:
            client.chat.completions.create(**fields)

    (call,) = calls_of(gateway_store)
    assert call.continuation == Continuation(Continuity.ENDPOINT)
    assert call.prompt_ids == (ByteChatFormat().render([QUESTION]) if token_ids else None)
