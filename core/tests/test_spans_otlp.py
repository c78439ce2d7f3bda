"""Spans read from OTLP/JSON requests."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spangrad.errors import SpanError
from spangrad.spans import Span, SpanEvent, from_otlp_json

TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = "eee19b7ec3c1b174"


def one(span: dict[str, Any], *, resource: list[dict[str, Any]] | None = None) -> Span:
    """The span as it comes out of a request that holds it alone."""
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": resource or []},
                "scopeSpans": [
                    {"scope": {"name": "acme.tracing"}, "spans": [{"traceId": TRACE, "spanId": SPAN, **span}]}
                ],
            }
        ]
    }
    (result,) = from_otlp_json(json.loads(json.dumps(body)))
    return result


def value_of(value: dict[str, Any]) -> Any:
    """An attribute's value as it comes out."""
    return one({"attributes": [{"key": "a", "value": value}]}).attributes["a"]


def test_every_field_of_a_span_is_read() -> None:
    span = one(
        {
            "traceId": TRACE.upper(),
            "parentSpanId": "EEE19B7EC3C1B173",
            "name": "chat m",
            "kind": 3,
            "startTimeUnixNano": "1544712660000000001",
            "endTimeUnixNano": "1544712661000000003",
            "attributes": [
                {"key": "spangrad.rollout.id", "value": {"stringValue": "r1"}},
                {"key": "spangrad.attempt", "value": {"intValue": "2"}},
            ],
            "events": [
                {
                    "timeUnixNano": "1544712660500000000",
                    "name": "token",
                    "attributes": [{"key": "n", "value": {"intValue": 1}}],
                }
            ],
            "status": {"code": 2, "message": "time-out"},
            "flags": 257,
            "someLaterField": {"x": []},
        }
    )
    assert span == Span(
        trace_id=TRACE,
        span_id=SPAN,
        parent_id="eee19b7ec3c1b173",
        rollout_id="r1",
        attempt=2,
        name="chat m",
        kind="client",
        start_ns=1544712660000000001,
        end_ns=1544712661000000003,
        status="error",
        status_message="time-out",
        attributes={"spangrad.rollout.id": "r1", "spangrad.attempt": 2},
        events=(SpanEvent("token", 1544712660500000000, {"n": 1}),),
        scope="acme.tracing",
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"stringValue": ""}, ""),
        ({"boolValue": False}, False),
        ({"intValue": "-9223372036854775808"}, -(2**63)),
        ({"doubleValue": 0.25}, 0.25),
        ({"doubleValue": "Infinity"}, math.inf),
        ({"bytesValue": "AP8="}, "AP8="),
        ({"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": -0.5}, {}]}}, [1, -0.5, None]),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": []}}}]}}, {"k": []}),
        ({}, None),
    ],
)
def test_each_kind_of_value_is_read(value: dict[str, Any], plain: Any) -> None:
    assert value_of(value) == plain


def test_names_of_enumerations_are_taken_too_and_unknown_numbers_count_as_unspecified() -> None:
    named = one({"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_OK"}})
    later = one({"kind": 17, "status": {"code": 9}})
    assert (named.kind, named.status) == ("server", "ok")
    assert (later.kind, later.status) == ("internal", "unset")


@pytest.mark.parametrize("parent", ["", "0000000000000000", None])
def test_an_empty_parent_means_a_root_and_null_means_absent(parent: str | None) -> None:
    span = one({"parentSpanId": parent, "events": None, "status": None, "endTimeUnixNano": "0"})
    assert (span.parent_id, span.events, span.status, span.end_ns) == (None, (), "unset", None)


def test_the_resource_names_the_rollout_of_spans_that_name_none() -> None:
    span = one({}, resource=[{"key": "spangrad.rollout.id", "value": {"stringValue": "r9"}}])
    assert (span.rollout_id, span.attempt, span.attributes) == ("r9", None, {})


def test_spans_of_all_resources_and_scopes_come_in_order() -> None:
    ids = [f"{n:016x}" for n in range(1, 5)]
    spans = [{"traceId": TRACE, "spanId": span_id} for span_id in ids]
    body = {
        "resourceSpans": [
            {"scopeSpans": [{"spans": spans[:1]}, {"spans": spans[1:2]}]},
            {"scopeSpans": [{"scope": {}, "spans": spans[2:]}]},
        ]
    }
    assert [span.span_id for span in from_otlp_json(body)] == ids
    assert from_otlp_json({}) == []


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        ({"traceId": "AAAA"}, "traceId"),
        ({"traceId": "0" * 32}, "traceId"),
        ({"spanId": "g" * 16}, "spanId"),
        ({"startTimeUnixNano": "yesterday"}, "startTimeUnixNano"),
        ({"endTimeUnixNano": str(2**64 - 1)}, "endTimeUnixNano"),
        ({"attributes": [{"key": "a", "value": {"intValue": "1.5"}}]}, "intValue"),
        ({"attributes": {"a": 1}}, "attributes"),
        ({"kind": "SPAN_KIND_STRANGE"}, "kind"),
    ],
)
def test_a_wrong_field_is_named(span: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpanError, match=rf"resourceSpans\.0\.scopeSpans\.0\.spans\.0\..*{complaint}"):
        one(span)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(SpanError, match="Not an OTLP/JSON trace request"):
        from_otlp_json(json.loads("[1]"))


def test_a_value_nested_without_end_is_refused_rather_than_crashing() -> None:
    value: dict[str, Any] = {"stringValue": "deep"}
    for _ in range(300):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(SpanError, match="Not an OTLP/JSON trace request"):
        value_of(value)
