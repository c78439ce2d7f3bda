"""Rules over hand-made spans and calls: what each finds, which call it rewards, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from spangrad.errors import RewardError
from spangrad.rollouts.rules import Derived, Rule, Work, derived, user_rewards
from spangrad.spans import Span, SpanEvent, SpanStatus
from spangrad.transitions import Call, CallStatus, Choice

MakeCall = Callable[..., Call]
LOOKUP = {"name": "lookup", "parameters": {"type": "object"}}


def ask(tool_call_id: str, arguments: str = "{}", name: str = "lookup") -> dict[str, Any]:
    return {"id": tool_call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(*asks: Mapping[str, Any], content: str | None = None, index: int = 0) -> Choice:
    message = {"role": "assistant", "content": content, "tool_calls": list(asks)}
    return Choice(index, (7, 8), (-0.5, -0.25), "stop", message)


def span(span_id: str, second: float, *, seconds: float = 0.1, **fields: Any) -> Span:
    """A span of rollout-0 that begins at a second as calls count them: call N is answered half a second after N."""
    start = int((100.0 + second) * 1e9)
    usual: dict[str, Any] = {
        "trace_id": "t",
        "span_id": span_id,
        "parent_id": None,
        "rollout_id": "rollout-0",
        "attempt": 0,
        "name": span_id,
        "kind": "internal",
        "start_ns": start,
        "end_ns": start + int(seconds * 1e9),
        "status": "unset",
        "status_message": "",
        "attributes": {},
        "events": (),
        "scope": "test",
    }
    return Span(**usual | fields)


def tool(
    second: float,
    *,
    name: str = "lookup",
    call_id: str | None = None,
    agent: str | None = None,
    status: SpanStatus = "unset",
    arguments: str | None = None,
    more: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Span:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.agent.name": agent,
        "gen_ai.tool.call.arguments": arguments,
        **(more or {}),
    }
    given = {key: value for key, value in attributes.items() if value is not None}
    fields = {"span_id": f"tool-{second}"} | fields
    return span(fields.pop("span_id"), second, status=status, attributes=given, **fields)


def found(rule: Rule, *work: Call | Span) -> Derived:
    calls = [one for one in work if isinstance(one, Call)]
    return derived([rule], Work.of(calls, [one for one in work if isinstance(one, Span)]), {})


def rewards(rule: Rule, *work: Call | Span) -> list[tuple[str, float]]:
    return [(call_id, value) for _, call_id, value in found(rule, *work).rewards]


def test_a_failed_tool_rewards_the_call_that_asked_for_it_not_the_latest(make_call: MakeCall) -> None:
    asking, later = make_call(1, choices=(answer(ask("a"), ask("b")),)), make_call(2)
    failed = tool(2.6, call_id="a", status="error")

    assert rewards(Rule("e", "tool_error", -0.5), asking, later, failed, tool(2.7, call_id="b")) == [("call-1", -0.5)]


def test_an_exception_on_record_is_a_failure_whatever_the_status_says(make_call: MakeCall) -> None:
    event = SpanEvent("exception", 0, {"exception.type": "ValueError"})
    raised = tool(1.6, status="ok", events=(event,))

    assert rewards(Rule("e", "tool_error", -1.0), make_call(1), raised) == [("call-1", -1.0)]
    assert rewards(Rule("o", "tool_ok", 1.0), make_call(1), raised) == []


def test_a_tool_is_ok_when_it_ended_by_itself_without_failing(make_call: MakeCall) -> None:
    asking = make_call(1, choices=(answer(*(ask(one) for one in "abcd")),))
    good, bad = tool(1.6, call_id="a"), tool(1.7, call_id="b", status="error")
    cut = tool(1.8, call_id="c", more={"spangrad.incomplete": True})
    open_ = tool(1.9, call_id="d", end_ns=None)

    assert rewards(Rule("o", "tool_ok", 0.25), asking, good, bad, cut, open_) == [("call-1", 0.25)]


def test_only_the_named_tool_and_the_named_agent_count(make_call: MakeCall) -> None:
    writer = make_call(1, agent="writer", choices=(answer(ask("a"), ask("b", name="search")),))
    reader = make_call(2, agent="reader", choices=(answer(ask("c")),))
    spans = (
        tool(2.6, call_id="a", status="error"),
        tool(2.7, call_id="b", name="search", status="error"),
        tool(2.8, call_id="c", status="error"),
    )

    assert rewards(Rule("e", "tool_error", -1.0, tool="search"), writer, reader, *spans) == [("call-1", -1.0)]
    assert rewards(Rule("e", "tool_error", -1.0, agent="reader"), writer, reader, *spans) == [("call-2", -1.0)]
    assert rewards(Rule("e", "tool_error", -1.0, agent="nobody"), writer, reader, *spans) == []


def test_two_spans_of_one_run_of_a_tool_count_once(make_call: MakeCall) -> None:
    asking = make_call(1, choices=(answer(ask("a")),))
    outer = tool(1.6, call_id="a", status="error", span_id="outer")
    inner = tool(1.7, call_id="a", status="error", span_id="inner", parent_id="outer")
    again = tool(1.8, call_id="a", status="error", span_id="again")

    assert len(rewards(Rule("e", "tool_error", -1.0), asking, outer, inner)) == 1
    assert len(rewards(Rule("e", "tool_error", -1.0), asking, outer, inner, again)) == 2


def test_without_a_tool_call_id_the_agents_latest_answered_call_is_meant(make_call: MakeCall) -> None:
    calls = (
        make_call(1, agent="writer"),
        make_call(2, agent="reader"),
        make_call(3, agent="writer"),  # answered at 3.5, when the tool was running already
    )
    failed = tool(3.2, agent="writer", status="error")

    assert rewards(Rule("e", "tool_error", -1.0), *calls, failed) == [("call-1", -1.0)]


def test_the_agent_and_the_tool_call_id_may_stand_above_the_span(make_call: MakeCall) -> None:
    calls = make_call(1, agent="writer", choices=(answer(ask("a")),)), make_call(2, agent="reader")
    agent = span("agent", 0.5, attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "writer"})
    outer = tool(2.6, call_id="a", span_id="outer", parent_id="agent")
    by_id = tool(2.7, name="inner", status="error", parent_id="outer")
    by_agent = tool(2.8, name="inner", status="error", parent_id="agent")

    for failed in (by_id, by_agent):
        assert rewards(Rule("e", "tool_error", -1.0), *calls, agent, outer, failed) == [("call-1", -1.0)]


def test_a_tool_of_an_agent_that_is_a_tool_itself_belongs_to_the_inner_agents_call(make_call: MakeCall) -> None:
    boss, worker = make_call(1, agent="boss", choices=(answer(ask("a")),)), make_call(2, agent="worker")
    outer = tool(1.6, call_id="a", agent="boss", span_id="outer")
    inner = span(
        "inner",
        1.7,
        parent_id="outer",
        attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "worker"},
    )
    failed = tool(2.6, name="deep", status="error", parent_id="inner")

    assert rewards(Rule("e", "tool_error", -1.0), boss, worker, outer, inner, failed) == [("call-2", -1.0)]


def test_a_span_inside_an_llm_calls_span_belongs_to_that_call(make_call: MakeCall) -> None:
    chat = span("chat", 1.0, attributes={"gen_ai.operation.name": "chat", "spangrad.call.id": "call-1"})
    failed = tool(2.6, status="error", parent_id="chat")

    assert rewards(Rule("e", "tool_error", -1.0), make_call(1), make_call(2), chat, failed) == [("call-1", -1.0)]


def test_what_cannot_be_linked_gives_nothing_and_is_counted(make_call: MakeCall) -> None:
    calls = make_call(1, agent="writer"), make_call(2, agent="reader")
    rule = Rule("e", "tool_error", -1.0)
    unknown_id = tool(2.6, agent="writer", call_id="from elsewhere", status="error")
    unknown_agent = tool(2.7, status="error")
    too_early = tool(0.5, agent="writer", status="error")

    result = found(rule, *calls, unknown_id, unknown_agent, too_early)
    assert (result.rewards, result.unlinked) == ((), 3)
    assert found(replace(rule, agent="writer"), *calls, unknown_id, unknown_agent, too_early).unlinked == 2


def test_answers_that_never_reached_the_agent_asked_for_nothing(make_call: MakeCall) -> None:
    lost = make_call(1, request_key="same", choices=(answer(ask("a", '{"x": 1}')),))
    repeated = make_call(2, request_key="same", retry=1, choices=(answer(ask("b", '{"x": 1}')),))
    failed = make_call(3, status=CallStatus.ERROR, choices=(answer(ask("c", '{"x": 1}')),))

    assert rewards(Rule("r", "repeated_call", -1.0), lost, repeated, failed) == []
    result = found(Rule("e", "tool_error", -1.0), lost, repeated, failed, tool(3.6, call_id="a", status="error"))
    assert (result.rewards, result.unlinked) == ((), 1)


def test_a_tool_call_id_used_twice_means_the_latest_before_the_tool(make_call: MakeCall) -> None:
    calls = [make_call(number, choices=(answer(ask("call_0")),)) for number in (1, 2, 3)]
    failed = tool(2.6, call_id="call_0", status="error")

    assert rewards(Rule("e", "tool_error", -1.0), *calls, failed) == [("call-2", -1.0)]


@pytest.mark.parametrize(
    ("attribute", "status", "at_least", "counts"),
    [
        ("http.response.status_code", 404, 400, True),
        ("http.status_code", 500, 400, True),
        ("http.response.status_code", "503", 400, True),
        ("http.response.status_code", 200, 400, False),
        ("http.response.status_code", 404, 500, False),
        ("http.response.status_code", 500, 500, True),
        ("http.response.status_code", "teapot", 400, False),
        ("http.response.status_code", True, 400, False),
    ],
)
def test_http_statuses_count_from_the_lowest_that_is_bad(
    make_call: MakeCall, attribute: str, status: object, at_least: int, counts: bool
) -> None:
    asking = make_call(1, choices=(answer(ask("a")),))
    outer = tool(1.6, call_id="a", span_id="outer")
    request = span("GET", 1.65, parent_id="outer", attributes={attribute: status})
    rule = Rule("h", "http_status", -0.1, at_least=at_least, tool="lookup")

    assert rewards(rule, asking, outer, request) == ([("call-1", -0.1)] if counts else [])


def test_requests_to_the_model_and_the_same_answer_seen_twice_are_no_bad_status(make_call: MakeCall) -> None:
    bad = {"http.response.status_code": 500}
    chat = span("chat", 1.6, attributes={"gen_ai.operation.name": "chat", "spangrad.call.id": "call-1"})
    to_the_model = span("POST", 1.7, parent_id="chat", attributes=bad)
    outer, inner = span("GET", 1.8, attributes=bad), span("urllib3", 1.9, parent_id="GET", attributes=bad)

    assert rewards(Rule("h", "http_status", -1.0), make_call(1), chat, to_the_model) == []
    assert rewards(Rule("h", "http_status", -1.0), make_call(1), outer, inner) == [("call-1", -1.0)]


@pytest.mark.parametrize(
    ("choice", "malformed"),
    [
        (answer(content="It is 4."), False),
        (answer(content='<tool_call>{"name": "lookup"'), True),
        (answer(content="I call [TOOL_CALLS]lookup"), True),
        (answer(ask("a", '{"x": 1}')), False),
        (answer(ask("a", "")), False),
        (answer(ask("a", "[1]")), True),
        (answer(ask("a", '{"x": ')), True),
        (answer(ask("a", name="unknown")), True),
    ],
)
def test_a_malformed_tool_call_is_text_or_arguments_or_a_name_that_will_not_do(
    make_call: MakeCall, choice: Choice, malformed: bool
) -> None:
    for offered in (
        {"type": "function", "function": LOOKUP},
        {"type": "function", **LOOKUP},
    ):  # Chat Completions, Responses
        call = make_call(1, choices=(choice,), request={"tools": [offered]})
        assert rewards(Rule("m", "malformed_tool_call", -1.0), call) == ([("call-1", -1.0)] if malformed else [])


def test_text_that_looks_like_a_call_is_just_text_where_no_tool_is_offered(make_call: MakeCall) -> None:
    text = make_call(1, choices=(answer(content="<tool_call>x"),), request={"messages": []})
    asking = make_call(2, choices=(answer(ask("a")),), request={"messages": []})

    assert rewards(Rule("m", "malformed_tool_call", -1.0), text, asking) == [("call-2", -1.0)]


def test_a_tool_is_slow_beyond_its_seconds_also_when_it_never_ended(make_call: MakeCall) -> None:
    asking = make_call(1, choices=(answer(*(ask(one) for one in "abc")),))
    spans = (
        tool(1.6, call_id="a", seconds=2.0),
        tool(1.7, call_id="b", seconds=2.5, name="search"),
        tool(1.8, call_id="c", seconds=9.0, more={"spangrad.incomplete": True}),
    )
    rule = Rule("s", "slow_tool", -0.1, seconds=2.0)

    assert rewards(rule, asking, *spans) == [("call-1", -0.1)] * 2
    assert rewards(replace(rule, tool="search"), asking, *spans) == [("call-1", -0.1)]


def test_a_repeated_call_asks_the_same_tool_with_equal_arguments(make_call: MakeCall) -> None:
    calls = [
        make_call(1, choices=(answer(ask("a", '{"x": 1, "y": 2}')),)),
        make_call(2, choices=(answer(ask("b", '{"y":2,"x":1}')),)),
        make_call(3, choices=(answer(ask("c", '{"x": 1, "y": 2}', name="search"), ask("d", '{"x": 2}')),)),
        make_call(4, choices=(answer(ask("e", '{"x": 2}'), ask("f", '{"x": 3}'), ask("g", '{"x": 3}')),)),
    ]
    # Spans with ids of the framework's own must not count as further calls.
    spans = [tool(1.6, arguments='{"x": 1, "y": 2}', call_id="own")]

    rule = Rule("r", "repeated_call", -1.0)
    assert rewards(rule, *calls, *spans) == [("call-2", -1.0), ("call-4", -1.0), ("call-4", -1.0)]
    assert rewards(replace(rule, tool="search"), *calls) == []


def test_several_answers_to_one_question_do_not_repeat_each_other(make_call: MakeCall) -> None:
    both = make_call(1, choices=(answer(ask("a", '{"x": 1}')), answer(ask("b", '{"x": 1}'), index=1)))

    assert rewards(Rule("r", "repeated_call", -1.0), both) == []


def test_where_no_answer_has_tool_calls_the_tools_spans_tell_repetitions(make_call: MakeCall) -> None:
    first, second = tool(1.6, arguments='{"x": 1}'), tool(2.6, arguments='{ "x":1 }')

    assert rewards(Rule("r", "repeated_call", -1.0), make_call(1), make_call(2), first, second) == [("call-2", -1.0)]


@pytest.mark.parametrize(
    ("at_most", "expected"),
    [
        (None, [-0.4, -0.4, -0.4]),
        (1.0, [-0.4, -0.4, -0.2]),  # 0.4 + 0.4 leaves 0.2
        (0.4, [-0.4]),
        (0.1, [-0.1]),
    ],
)
def test_a_limit_cuts_the_reward_that_goes_beyond_it(
    make_call: MakeCall, at_most: float | None, expected: list[float]
) -> None:
    asking = make_call(1, choices=(answer(*(ask(one) for one in "abc")),))
    spans = [tool(1.6 + number / 10, call_id=one, status="error") for number, one in enumerate("abc")]

    given = rewards(Rule("e", "tool_error", -0.4, at_most=at_most), asking, *spans)
    assert [value for _, value in given] == pytest.approx(expected)


def test_a_functions_rewards_are_those_of_calls_in_their_order(make_call: MakeCall) -> None:
    rule = Rule("f", "function", function_name="m:f", at_most=1.0)
    work = Work.of([make_call(1), make_call(2)], [])
    given = user_rewards(rule, {"call-2": -2, "call-1": True}, work)

    assert given == [("call-1", 1.0), ("call-2", -2.0)]
    assert derived([rule], work, {"f": given}).rewards == ((rule, "call-1", 1.0),)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "returned is of type NoneType"),
        ([("call-1", 1.0)], "returned is of type list"),
        ({"call-9": 1.0}, "rewards 'call-9', which is no answered call"),
        ({"call-1": float("nan")}, "for call call-1 is nan"),
        ({"call-1": "much"}, "for call call-1 is str 'much', not a number"),
    ],
)
def test_a_function_that_gives_no_rewards_of_calls_is_named(make_call: MakeCall, given: object, complaint: str) -> None:
    rule = Rule("f", "function", function_name="m:f")

    with pytest.raises(RewardError, match="'m:f' of the rule 'f'") as caught:
        user_rewards(rule, given, Work.of([make_call(1)], []))
    assert complaint in str(caught.value)


def test_spans_whose_parents_form_a_ring_are_read_all_the_same(make_call: MakeCall) -> None:
    one = tool(1.6, status="error", span_id="one", parent_id="two")
    two = tool(1.7, status="error", span_id="two", parent_id="one")

    assert rewards(Rule("e", "tool_error", -1.0), make_call(1), one, two) == [("call-1", -1.0)] * 2
