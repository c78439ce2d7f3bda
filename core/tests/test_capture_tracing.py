"""Our own tracer provider: apart from the user's, stamped, complete, delivered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from spangrad.capture import RolloutScope, deliver_spans, flush_spans, tracer_provider, use_scope
from spangrad.capture._otlp_json import to_otlp_json
from spangrad.spans import from_otlp_json, from_readable


def make_scope(rollout_id: str) -> RolloutScope:
    return RolloutScope(rollout_id, 3, "t1", "http://127.0.0.1:1/v1", "key", agent="writer")


class Received:
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def __call__(self, spans: Sequence[ReadableSpan]) -> None:
        self.spans += spans


def test_spans_carry_the_rollout_they_were_made_in() -> None:
    received = Received()
    tracer = tracer_provider().get_tracer("test")
    with deliver_spans(received):
        with use_scope(make_scope("r1")), tracer.start_as_current_span("inside"):
            pass
        with tracer.start_as_current_span("outside"):
            pass
    attributes = {span.name: dict(span.attributes or {}) for span in received.spans}
    assert attributes["inside"] == {
        "spangrad.rollout.id": "r1",
        "spangrad.attempt": 3,
        "spangrad.task.id": "t1",
        "gen_ai.agent.name": "writer",
    }
    assert attributes["outside"] == {}


def test_all_spans_are_delivered_before_the_block_ends() -> None:
    received = Received()
    tracer = tracer_provider().get_tracer("test")
    with deliver_spans(received):
        for number in range(2_000):
            tracer.start_span(f"s{number}").end()
    assert {span.name for span in received.spans} == {f"s{number}" for number in range(2_000)}
    assert len(received.spans) == 2_000


def test_a_span_that_finished_before_the_block_is_not_delivered() -> None:
    received = Received()
    tracer_provider().get_tracer("test").start_span("earlier").end()
    with deliver_spans(received):
        pass
    assert received.spans == []


def test_a_flush_delivers_what_has_finished_so_far() -> None:
    received = Received()
    tracer = tracer_provider().get_tracer("test")
    with deliver_spans(received):
        tracer.start_span("first").end()
        flush_spans()
        assert [span.name for span in received.spans] == ["first"]


def test_the_global_provider_is_left_alone() -> None:
    before = trace.get_tracer_provider()
    tracer_provider()
    assert trace.get_tracer_provider() is before
    assert before is not tracer_provider()


@pytest.mark.parametrize(
    "variable",
    [
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
        "OTEL_SPAN_EVENT_COUNT_LIMIT",
        "OTEL_TRACES_SAMPLER",
    ],
)
def test_limits_and_samplers_of_the_users_environment_do_not_reach_our_spans(variable: str) -> None:
    program = """
from spangrad.capture import deliver_spans, tracer_provider
received = []
with deliver_spans(received.extend):
    with tracer_provider().get_tracer("test").start_as_current_span("s") as span:
        for number in range(300):
            span.set_attribute(f"a{number}", "x" * 500)
            span.add_event(f"e{number}")
(span,) = received
assert len(span.attributes) == 300 and len(span.events) == 300, (len(span.attributes), len(span.events))
assert all(len(value) == 500 for value in span.attributes.values())
"""
    value = "always_off" if variable.endswith("SAMPLER") else "2"
    ran = subprocess.run(
        [sys.executable, "-c", program], env={variable: value}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_span_survives_the_way_over_otlp_json() -> None:
    received = Received()
    tracer = tracer_provider().get_tracer("the scope")
    with deliver_spans(received), use_scope(make_scope("r1")), tracer.start_as_current_span("parent"):
        with tracer.start_as_current_span("chat", kind=trace.SpanKind.CLIENT) as span:
            span.set_attributes(
                {"text": "ä", "flag": True, "count": 2**40, "share": 0.5, "reasons": ["stop", "length"]}
            )
            span.add_event("chunk", {"index": 1})
            span.set_status(trace.StatusCode.ERROR, "broken")
        tracer.start_span("fine", attributes={"n": 1}).end()
    spans = [from_readable(span) for span in received.spans]
    assert {span.name: span.status for span in spans} == {"parent": "unset", "chat": "error", "fine": "unset"}
    assert sorted(from_otlp_json(to_otlp_json(spans)), key=lambda s: s.span_id) == sorted(
        spans, key=lambda s: s.span_id
    )
