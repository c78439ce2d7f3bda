"""What the model is told of the answer's form and shown of its tools."""

from __future__ import annotations

from typing import Any

import pytest

from spangrad.gateway import EngineError, shown_tools, told_messages
from spangrad.testing import ByteChatFormat
from spangrad.training._warm_start import demonstrated

USER = {"role": "user", "content": "x"}
SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "out", "schema": SCHEMA, "strict": True}}
TOLD = (
    "Answer with JSON and nothing else. It must match this JSON Schema:\n"
    '{"type":"object","properties":{"größe":{"type":"integer"}}}'
)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [{"role": "system", "content": TOLD}, USER]),
        (
            [{"role": "system", "content": "Be good."}, USER],
            [{"role": "system", "content": f"Be good.\n\n{TOLD}"}, USER],
        ),
        (
            [{"role": "developer", "content": "Be good.", "name": "me"}, USER],
            [{"role": "developer", "content": f"Be good.\n\n{TOLD}", "name": "me"}, USER],
        ),
        ([{"role": "system", "content": None}, USER], [{"role": "system", "content": TOLD}, USER]),
        (
            [{"role": "system", "content": [{"type": "text", "text": "Be good."}]}, USER],
            [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "Be good."}, {"type": "text", "text": f"\n\n{TOLD}"}],
                },
                USER,
            ],
        ),
        (
            [USER, {"role": "system", "content": "later"}],
            [{"role": "system", "content": TOLD}, USER, {"role": "system", "content": "later"}],
        ),
    ],
)
def test_the_schema_joins_the_system_message_or_comes_in_front(
    messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    before = repr(messages)
    assert list(told_messages(messages, AS_SCHEMA)) == expected
    assert repr(messages) == before


def test_any_json_object_is_asked_for_without_a_schema() -> None:
    told = told_messages([USER], {"type": "json_object"})
    assert told[0] == {"role": "system", "content": "Answer with one JSON object and nothing else."}


def test_the_purpose_of_a_schema_is_told_with_it() -> None:
    described = {"type": "json_schema", "json_schema": {"name": "out", "description": "a size", "schema": {}}}
    assert told_messages([USER], described)[0]["content"] == (
        "Answer with JSON and nothing else. It must match this JSON Schema (a size):\n{}"
    )


@pytest.mark.parametrize("response_format", [None, {"type": "text"}])
def test_plain_text_needs_no_words(response_format: Any) -> None:
    assert told_messages([USER], response_format) == [USER]


@pytest.mark.parametrize(
    ("response_format", "words"),
    [
        ({"type": "grammar"}, "not known"),
        ({}, "not known"),
        ("json", "not known"),
        ({"type": "json_schema"}, "needs json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "needs json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}}, "needs json_schema.schema"),
    ],
)
def test_an_unknown_form_is_refused(response_format: Any, words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        told_messages([USER], response_format)
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_equal_tools_are_shown_equally_however_a_client_sends_them() -> None:
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}}
    function = {"name": "f", "description": "d", "parameters": parameters}
    sent: list[dict[str, Any]] = [
        {"type": "function", "function": function},
        {"function": {"strict": True, "parameters": parameters, "description": "d", "name": "f"}, "type": "function"},
        {
            "type": "function",
            "function": {"description": "d", "note": None, "name": "f", "parameters": parameters, "strict": False},
        },
    ]
    texts = {repr(shown_tools([tool])) for tool in sent}
    assert texts == {repr([sent[0]])}


def test_further_members_of_a_tool_are_shown_behind_the_known_ones() -> None:
    tool = {"note": 1, "type": "function", "function": {"examples": ["x"], "name": "f"}}
    assert repr(shown_tools([tool])) == repr(
        [{"type": "function", "function": {"name": "f", "examples": ["x"]}, "note": 1}]
    )


def test_a_demonstration_shows_tools_as_the_gateway_does() -> None:
    sent = {"type": "function", "function": {"strict": False, "parameters": {"type": "object"}, "name": "f"}}
    answer = {"role": "assistant", "content": "y"}
    ((transition,),) = demonstrated([{"messages": [USER, answer], "tools": [sent]}], ByteChatFormat(), policies=["p"])
    shown = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert transition.prompt_ids == ByteChatFormat().render([USER], tools=[shown])
