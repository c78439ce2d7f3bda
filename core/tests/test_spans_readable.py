"""Spans read from the OpenTelemetry SDK of this process."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

from spangrad.errors import SpanError
from spangrad.spans import Span, SpanEvent, from_readable, span_from_json, span_to_json
from spangrad.spans._attributes import plain_attributes


class Recorder:
    """A tracer of its own and what it recorded."""

    def __init__(self, resource: dict[str, str] | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource(resource or {}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("my.instrumentation")

    def spans(self) -> dict[str, Span]:
        return {span.name: from_readable(span) for span in self._exporter.get_finished_spans()}


def test_every_field_of_a_finished_span_is_kept() -> None:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span("agent", start_time=1_000_000_007, end_on_exit=False) as parent:
        child = recorder.tracer.start_span(
            "chat m",
            kind=SpanKind.CLIENT,
            start_time=2_000_000_001,
            attributes={
                "spangrad.rollout.id": "train-0003-t1-2",
                "spangrad.attempt": 2,
                "gen_ai.response.finish_reasons": ["stop", "length"],
                "ids": [1, 2, 3],
                "logprobs": [-0.5, -1.25],
                "flag": True,
            },
        )
        child.add_event("token", {"n": 1}, timestamp=2_500_000_000)
        child.set_status(Status(StatusCode.ERROR, "time-out"))
        child.end(3_000_000_000)
        parent.end(4_000_000_000)

    span, root = recorder.spans()["chat m"], recorder.spans()["agent"]
    context = child.get_span_context()
    assert span == Span(
        trace_id=format(context.trace_id, "032x"),
        span_id=format(context.span_id, "016x"),
        parent_id=root.span_id,
        rollout_id="train-0003-t1-2",
        attempt=2,
        name="chat m",
        kind="client",
        start_ns=2_000_000_001,
        end_ns=3_000_000_000,
        status="error",
        status_message="time-out",
        attributes={
            "spangrad.rollout.id": "train-0003-t1-2",
            "spangrad.attempt": 2,
            "gen_ai.response.finish_reasons": ["stop", "length"],
            "ids": [1, 2, 3],
            "logprobs": [-0.5, -1.25],
            "flag": True,
        },
        events=(SpanEvent("token", 2_500_000_000, {"n": 1}),),
        scope="my.instrumentation",
    )
    assert (root.parent_id, root.rollout_id, root.attempt, root.status) == (None, None, None, "unset")
    assert root.trace_id == span.trace_id


def test_a_resource_names_the_rollout_of_its_spans_unless_a_span_does_so_itself() -> None:
    recorder = Recorder({"spangrad.rollout.id": "r-process", "spangrad.attempt": "3"})
    recorder.tracer.start_span("silent").end()
    recorder.tracer.start_span("other", attributes={"spangrad.rollout.id": "r-span", "spangrad.attempt": 1}).end()
    spans = recorder.spans()
    assert (spans["silent"].rollout_id, spans["silent"].attempt) == ("r-process", 3)
    assert (spans["other"].rollout_id, spans["other"].attempt) == ("r-span", 1)


@pytest.mark.parametrize("rollout_id", [7, "", True])
@pytest.mark.parametrize("attempt", ["two", 1.5, True, "²"])
def test_a_rollout_id_or_attempt_of_the_wrong_type_counts_as_missing(
    rollout_id: str | int, attempt: str | float
) -> None:
    recorder = Recorder()
    recorder.tracer.start_span("s", attributes={"spangrad.rollout.id": rollout_id, "spangrad.attempt": attempt}).end()
    assert (recorder.spans()["s"].rollout_id, recorder.spans()["s"].attempt) == (None, None)


def test_an_open_span_has_no_end_and_later_changes_do_not_show() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    open_span = provider.get_tracer("t").start_span("open")
    assert isinstance(open_span, ReadableSpan)
    before = from_readable(open_span)
    open_span.set_attribute("late", 1)
    open_span.end()
    assert (before.end_ns, before.attributes) == (None, {})


def test_a_span_without_an_identity_is_refused() -> None:
    with pytest.raises(SpanError, match="has no trace id and span id"):
        from_readable(ReadableSpan("made by hand"))


def test_values_json_has_no_word_for_are_made_plain() -> None:
    value = {"blob": b"\x00\xff", "pair": (1, 2.5), "inner": {1: {"x"}}, "other": 1 + 2j, "none": None}
    plain = {"blob": "AP8=", "pair": [1, 2.5], "inner": {"1": ["x"]}, "other": "(1+2j)", "none": None}
    assert plain_attributes(value) == plain
    assert plain_attributes(None) == {}


def test_a_span_survives_its_json_form() -> None:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span("s", attributes={"list": [0.1, 2.5], "text": "ü"}) as span:
        span.add_event("e", {"k": [1]})
    original = recorder.spans()["s"]
    assert span_from_json(span_to_json(original)) == original


def test_json_that_is_no_span_is_refused_with_the_wrong_fields() -> None:
    with pytest.raises(SpanError, match=r"trace_id: .*; span_id: .*; and \d+ more"):
        span_from_json({"kind": "strange"})
