"""Reading tool calls out of sampled text."""

from __future__ import annotations

import pytest

from spangrad.backend import ParsedAnswer
from spangrad_torch._tool_calls import parse_tool_calls

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("calc", "search")]
CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "1+2"}}</tool_call>'


def functions(answer: ParsedAnswer) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in answer.tool_calls]


def test_a_lone_call_has_no_content() -> None:
    answer = parse_tool_calls(CALL, tools=TOOLS)

    assert functions(answer) == [("calc", '{"expression": "1+2"}')]
    assert answer.content is None
    assert answer.malformed == ()
    assert answer.tool_calls[0]["type"] == "function"


def test_several_calls_keep_their_order_and_get_different_ids() -> None:
    second = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'

    answer = parse_tool_calls(f"{CALL}\n{second}{CALL}", tools=TOOLS)

    assert [name for name, _ in functions(answer)] == ["calc", "search", "calc"]
    assert len({call["id"] for call in answer.tool_calls}) == 3
    assert all(call["id"].startswith("call_") for call in answer.tool_calls)


def test_text_around_a_call_stays_content_exactly() -> None:
    answer = parse_tool_calls(f"First I count.\n{CALL} Done. ", tools=TOOLS)

    assert answer.content == "First I count.\n Done. "
    assert len(answer.tool_calls) == 1


def test_text_without_calls_is_the_content() -> None:
    assert parse_tool_calls("  100\n", tools=TOOLS) == ParsedAnswer("  100\n")
    assert parse_tool_calls("", tools=TOOLS) == ParsedAnswer("")


def test_white_space_within_the_tags_is_tolerated_and_arguments_stay_as_written() -> None:
    text = '<tool_call>\n{ "arguments" : {"a" : [1,  {"b": "}"}]} ,\n"name":"calc" }\n</tool_call>'

    assert functions(parse_tool_calls(text, tools=TOOLS)) == [("calc", '{"a" : [1,  {"b": "}"}]}')]


def test_a_tag_inside_a_string_argument_ends_nothing() -> None:
    arguments = '{"expression": "</tool_call><tool_call>{}"}'
    text = f'<tool_call>{{"name": "calc", "arguments": {arguments}}}</tool_call>'

    answer = parse_tool_calls(text, tools=TOOLS)

    assert functions(answer) == [("calc", arguments)]
    assert answer.content is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "calc", "arguments": {"a": 1}', "broken"),
        ("{name: calc}", "broken"),
        ('{"name": "calc" "arguments": {}}', "broken"),
        ("", "broken"),
        ('{"name": "weather", "arguments": {}}', 'no tool "weather" was offered (offered: calc, search)'),
        ('{"name": ["calc"], "arguments": {}}', "was offered"),
        ('{"name": "calc", "arguments": "{}"}', "not a JSON object"),
        ('{"name": "calc", "arguments": [1]}', "not a JSON object"),
        ('{"name": "calc"}', "needs a name and arguments"),
        ("{}", "needs a name and arguments"),
        ('{"name": "calc", "arguments": {}, "id": 3}', "unknown members: id"),
        ('{"name": "calc", "name": "calc", "arguments": {}}', "distinct names"),
        ('{"name": "calc", "arguments": {"a": NaN}}', "NaN is not JSON"),
        ('{"name": "calc", "arguments": {}} and more', "not closed"),
        ('{"name": "calc", "arguments": ' + '{"a": ' * 100_000, "nested too deeply"),
        ('{"name": "calc", "arguments": {"a": ' + "1" * 5000 + "}}", "number"),
    ],
)
def test_a_malformed_call_stays_text_with_a_reason(body: str, reason: str) -> None:
    text = f"before <tool_call>{body}</tool_call> after"

    answer = parse_tool_calls(text, tools=TOOLS)

    assert answer.content == text
    assert answer.tool_calls == ()
    assert len(answer.malformed) == 1
    assert reason in answer.malformed[0]


def test_an_unclosed_call_at_the_end_stays_text() -> None:
    text = CALL.removesuffix("</tool_call>")

    answer = parse_tool_calls(text, tools=TOOLS)

    assert (answer.content, answer.tool_calls) == (text, ())
    assert "not closed" in answer.malformed[0]


def test_a_good_call_after_a_malformed_one_is_read() -> None:
    answer = parse_tool_calls(f"<tool_call>oops</tool_call>{CALL}", tools=TOOLS)

    assert len(answer.tool_calls) == 1
    assert answer.content == "<tool_call>oops</tool_call>"
    assert len(answer.malformed) == 1


def test_without_tools_a_call_is_text() -> None:
    answer = parse_tool_calls(CALL, tools=[])

    assert answer.content == CALL
    assert "offered: none" in answer.malformed[0]
