"""The byte-level chat format: rendering can be read back, answers continue prompts, tool calls are parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import BackendError
from spangrad.testing import ByteChatFormat

CALC = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
FORMAT = ByteChatFormat()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def turn(role: str, content: str) -> list[int]:
    return [256, *f"{role}\n{content}".encode(), 257]


def test_a_prompt_is_its_turns_and_the_header_of_the_answer() -> None:
    ids = FORMAT.render([{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}])
    assert list(ids) == [*turn("system", "be brief"), *turn("user", "1+1?"), 256, *b"assistant\n"]


def test_tools_come_first_and_an_opening_last() -> None:
    user = [{"role": "user", "content": "hi"}]
    shown = FORMAT.render(user, tools=[CALC])
    assert FORMAT.read(shown)[0] == {"role": "tools", "content": json.dumps(CALC, separators=(",", ":"))}
    assert FORMAT.render(user, tools=[CALC], opening="so") == (*shown, *b"so")


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "tool"]), TEXT)))
def test_a_rendered_prompt_reads_back_as_its_messages(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    assert FORMAT.read(FORMAT.render(messages)) == messages


def test_a_longer_conversation_begins_with_the_ids_of_the_shorter_one_and_its_answer() -> None:
    asked: list[dict[str, Any]] = [{"role": "user", "content": "2*3?"}]
    call = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"e": "2*3"}'}}
    answer = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    sampled = (*FORMAT.render(asked, tools=[CALC]), *FORMAT.render_answer(answer))
    later = FORMAT.render([*asked, answer, {"role": "tool", "content": "6", "tool_call_id": "call_1"}], tools=[CALC])
    assert later[: len(sampled)] == sampled


def test_what_it_renders_as_an_answer_it_parses_as_the_same_calls() -> None:
    functions = [{"name": "calc", "arguments": '{"e": "}{", "n": {"deep": [1]}}'}, {"name": "calc", "arguments": "{}"}]
    calls = [{"id": str(i), "type": "function", "function": function} for i, function in enumerate(functions)]
    ids = FORMAT.render_answer({"role": "assistant", "content": "so", "tool_calls": calls})
    parsed = FORMAT.parse(FORMAT.decode(ids, skip_special=True), tools=[CALC])
    assert parsed.content == "so"
    assert [call["function"] for call in parsed.tool_calls] == functions
    assert parsed.malformed == ()


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ('{"name": "calc", "arguments": ', "no JSON"),
        ('{"name": "other", "arguments": {}}', "not a call"),
        ('{"name": "calc", "arguments": "1+1"}', "not a call"),
        ("[1]", "not a call"),
    ],
)
def test_what_is_no_well_formed_call_stays_text_with_a_reason(inside: str, reason: str) -> None:
    text = f"<tool_call>{inside}</tool_call>"
    parsed = FORMAT.parse(text, tools=[CALC])
    assert parsed.content == text
    assert parsed.tool_calls == ()
    assert len(parsed.malformed) == 1
    assert reason in parsed.malformed[0]


def test_two_parsed_calls_have_two_ids() -> None:
    call = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
    parsed = FORMAT.parse(call + "\n" + call, tools=[CALC])
    assert parsed.content is None
    assert len({call["id"] for call in parsed.tool_calls}) == 2


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "narrator", "content": "x"}, "Unknown message role 'narrator'"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "part of type 'image_url'"),
    ],
)
def test_what_it_cannot_represent_is_an_error(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BackendError, match=complaint):
        FORMAT.render([message])


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert FORMAT.read(FORMAT.render([{"role": "user", "content": parts}])) == [{"role": "user", "content": "ab"}]


def test_decoding_shows_or_skips_the_special_ids() -> None:
    assert FORMAT.decode((256, 104, 105, 257)) == "<|im_start|>hi<|im_end|>"
    assert FORMAT.decode((256, 104, 105, 257), skip_special=True) == "hi"
    assert FORMAT.decode((195,)) == "\N{REPLACEMENT CHARACTER}"
