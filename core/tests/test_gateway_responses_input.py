"""What a request of the Responses API comes to as a chat request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.gateway import EngineError
from spangrad.gateway._request import read_chat
from spangrad.gateway._response_memory import ResponseMemory
from spangrad.gateway._responses_dialect import ResponsesDialect
from spangrad.gateway._responses_input import messages_from_items

CALL = {"type": "function_call", "call_id": "c1", "name": "calc", "arguments": '{"e": "1"}', "id": "fc_1"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"e": "1"}'}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **fields}


def chat(**fields: Any) -> dict[str, Any]:
    """The chat request a request comes to."""
    return dict(ResponsesDialect().read({"model": "m", "input": "x", **fields}, ResponseMemory()).body)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([], []),
        (
            [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "input_text", "text": "u"}]}],
            [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}],
        ),
        (
            [said("Let me see."), CALL, {**CALL, "call_id": "c2"}, OUTPUT, {**OUTPUT, "call_id": "c2"}, said("2")],
            [
                {"role": "assistant", "content": "Let me see.", "tool_calls": [TOOL_CALL, TOOL_CALL | {"id": "c2"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
                {"role": "assistant", "content": "2"},
            ],
        ),
        (
            [CALL, OUTPUT, CALL],
            [
                {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            ],
        ),
        ([said("a"), said("b")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
        ([thought(encrypted_content="gAAA"), said("a")], [{"role": "assistant", "content": "a"}]),
        (
            [thought(content=[{"type": "reasoning_text", "text": "hm"}]), CALL],
            [{"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [TOOL_CALL]}],
        ),
        (
            [thought(summary=[{"type": "summary_text", "text": "hm"}]), said("a")],
            [{"role": "assistant", "content": "a", "reasoning_content": "hm"}],
        ),
        (
            [{**OUTPUT, "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [
                {
                    "role": "tool",
                    "tool_call_id": "c1",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                }
            ],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "see"},
                        {"type": "input_image", "image_url": "data:,x", "detail": "low"},
                        {"type": "input_file", "filename": "f", "file_data": "x"},
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "see"},
                        {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
                        {"type": "file", "file": {"filename": "f", "file_data": "x"}},
                    ],
                }
            ],
        ),
    ],
)
def test_items_become_the_messages_a_chat_client_would_have_sent(items: Any, expected: list[dict[str, Any]]) -> None:
    assert messages_from_items(items) == expected


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (5, "input.1 is no object"),
        ({"id": "msg_1"}, "refers to an item by its id"),
        ({"type": "item_reference", "id": "msg_1"}, "previous_response_id"),
        (
            {"type": "web_search_call", "id": "ws_1"},
            "'web_search_call', which belongs to a tool that does not run here",
        ),
        ({"role": "robot", "content": "x"}, "role 'robot'"),
        ({"role": "user", "content": None}, "input.1.content is neither text nor"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input.1.content.0 is a part of type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.1.content.0 needs text"),
        ({**CALL, "arguments": {}}, "input.1 needs arguments, a text"),
        ({"type": "function_call_output", "output": "x"}, "input.1 needs call_id"),
        ({**OUTPUT, "output": 5}, "input.1.output is neither text nor"),
    ],
)
def test_an_item_that_cannot_be_told_is_refused_by_its_place(item: Any, words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        messages_from_items([{"role": "user", "content": "x"}, item])
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith("input.1")


def test_a_request_becomes_the_chat_request_that_asks_the_same() -> None:
    schema = {"type": "json_schema", "name": "out", "schema": {"type": "object"}, "strict": True}
    tool = {"name": "calc", "parameters": {"type": "object"}, "strict": True, "type": "function", "description": None}
    assert chat(
        instructions="Be good.",
        tools=[tool],
        tool_choice={"type": "function", "name": "calc"},
        parallel_tool_calls=False,
        text={"format": schema, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        stream_options={"include_obfuscation": False},
        seed=3,
        store=False,
        metadata={"a": "b"},
        truncation="auto",
        background=False,
    ) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be good."}, {"role": "user", "content": "x"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "calc", "parameters": {"type": "object"}, "strict": True},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "calc"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "out", "schema": {"type": "object"}, "strict": True},
        },
        "verbosity": "low",
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "stream": True,
        "seed": 3,
    }


def test_what_is_left_out_or_null_is_left_to_the_engine() -> None:
    fields = dict.fromkeys(
        ["instructions", "tools", "tool_choice", "include", "max_output_tokens", "previous_response_id", "conversation"]
    )
    assert chat(**fields) == {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert chat(tools=[], include=[]) == chat()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search' is built into OpenAI's servers"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools.0.type", "Give the agent a function"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools.0.type", "does not run here"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "'web_search'"),
        ({"tool_choice": 5}, "tool_choice", "the name of a function"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"background": True}, "background", "Wait for the answer"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "kept at OpenAI"),
        ({"n": 2}, "n", "A response is one answer"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "Shorten"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "not known here"),
        ({"input": None}, "input", "nothing to answer"),
        ({"input": 5}, "input", "neither text nor a list of items"),
        ({"max_output_tokens": 0, "include": 5}, "include", "include: .*; max_output_tokens: "),
        ({"model": None}, "model", "model"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_way_out(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from(["", "x", "message", "user", "function", "input_text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "text",
                    "output",
                    "call_id",
                    "name",
                    "arguments",
                    "summary",
                    "format",
                    "effort",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
FIELDS = [
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "stream",
    "n",
]
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])


def refusal(read: Callable[[], object]) -> int | None:
    """The status a request is refused with; None when it is understood."""
    try:
        read()
    except EngineError as error:
        return error.status
    return None


@given(st.dictionaries(st.sampled_from(FIELDS), ODD))
def test_whatever_is_sent_is_understood_or_refused(fields: dict[str, Any]) -> None:
    assert refusal(lambda: read_chat(chat(**fields))) in {None, 400}


@given(st.lists(st.fixed_dictionaries({"type": KINDS}, optional=dict.fromkeys(["role", "content", "summary"], ODD))))
def test_whatever_an_item_holds_it_is_understood_or_refused(items: list[Any]) -> None:
    assert refusal(lambda: messages_from_items(items)) in {None, 400}


def test_a_memory_forgets_what_was_used_longest_ago() -> None:
    memory = ResponseMemory(2)
    for name in ("a", "b"):
        memory.keep(name, [{"role": "user", "content": name}])
    assert memory.recall("a") == ({"role": "user", "content": "a"},)
    memory.keep("c", [])
    assert memory.recall("a")
    with pytest.raises(EngineError, match="'b' is not known here") as caught:
        memory.recall("b")
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
