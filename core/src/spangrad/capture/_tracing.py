"""Our own tracer provider, apart from the user's.

Instrumentors that serve spangrad get `tracer_provider()`. The process's global provider is never replaced or used, and the
`OTEL_*` settings a user made for it do not reach ours: its limits are off and it samples everything, because a span cut short
or missing would be a rollout misread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from spangrad import semconv
from spangrad.capture._scope import current_scope
from spangrad.errors import SpangradError

SpanSink = Callable[[Sequence[ReadableSpan]], None]
"""Takes finished spans; called from a worker thread, and from the thread that flushes."""

_QUEUE: Final = 65_536
"""Spans waiting for delivery; one more would be dropped."""
_BATCH: Final = 512
_DELAY_MS: Final = 500

_making: Final = threading.Lock()
_log = logging.getLogger("spangrad.capture")


class _ScopeStamp(SpanProcessor):
    """Writes onto every span which rollout it belongs to."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        scope = current_scope(parent_context)
        if scope is None:
            return
        span.set_attributes(
            {semconv.ROLLOUT_ID: scope.rollout_id, semconv.ATTEMPT: scope.attempt, semconv.TASK_ID: scope.task_id}
        )
        if scope.agent is not None:
            span.set_attribute(semconv.AGENT_NAME, scope.agent)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Holds nothing back. Older SDKs inherit a method that returns None, which stops the flush of the processors after it."""
        del timeout_millis
        return True


class _SinkExporter(SpanExporter):
    """Hands finished spans to whoever listens; without a listener they are let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: tuple[SpanSink, ...] = ()

    def add(self, sink: SpanSink) -> None:
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def remove(self, sink: SpanSink) -> None:
        with self._lock:
            sinks = list(self._sinks)
            sinks.remove(sink)
            self._sinks = tuple(sinks)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.SUCCESS
        for sink in self._sinks:
            try:
                sink(spans)
            except SpangradError as error:  # said once here; raising would make OpenTelemetry print a traceback
                _log.error("%d spans could not be kept: %s", len(spans), error)
                result = SpanExportResult.FAILURE
        return result


_exporter = _SinkExporter()


def tracer_provider() -> TracerProvider:
    """The process's one private provider; made when first asked for."""
    # Two threads that ask first at once must not get one each: spans of the other would never be delivered.
    with _making:
        return _make_provider()


@cache
def _make_provider() -> TracerProvider:
    unlimited = SpanLimits.UNSET
    provider = TracerProvider(
        # Shut down before the process's other exit handlers, it would lose the spans that they still end.
        shutdown_on_exit=False,
        sampler=ALWAYS_ON,
        resource=Resource({"service.name": "spangrad"}),
        span_limits=SpanLimits(
            max_attributes=unlimited,
            max_events=unlimited,
            max_links=unlimited,
            max_span_attributes=unlimited,
            max_event_attributes=unlimited,
            max_link_attributes=unlimited,
            max_attribute_length=unlimited,
            max_span_attribute_length=unlimited,
        ),
    )
    provider.add_span_processor(_ScopeStamp())
    provider.add_span_processor(
        BatchSpanProcessor(
            _exporter,
            max_queue_size=_QUEUE,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_BATCH,
            export_timeout_millis=30_000,
        )
    )
    return provider


@contextmanager
def deliver_spans(sink: SpanSink) -> Iterator[None]:
    """Hands the spans that finish during the block to `sink`, the last of them before the block ends. Blocks like `flush_spans`."""
    flush_spans()  # what finished earlier is not the sink's
    _exporter.add(sink)
    try:
        yield
    finally:
        flush_spans()
        _exporter.remove(sink)


def add_sink(sink: SpanSink) -> None:
    """Hands the spans that finish from now on to `sink`, for as long as the process runs."""
    flush_spans()
    _exporter.add(sink)


def flush_spans() -> None:
    """Delivers all spans finished so far; returns when the sinks have them. Blocks: not for an event loop's thread."""
    if _make_provider.cache_info().currsize:
        tracer_provider().force_flush()
