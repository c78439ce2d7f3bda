"""The tracer the instrumentor of openai gets: it puts each call's span where the agent made the call.

Where that is, the frameworks' hooks tell at the moment the span begins (`spangrad.capture.current_site`). The span gets its
parent when it is made, so nothing is attached to the program's context, and nothing can be left behind in it by a stream that
nobody reads to its end or a coroutine that is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.util._decorator import _AgnosticContextManager
from opentelemetry.util.types import Attributes

from spangrad import semconv
from spangrad.capture import CallSite, current_scope, current_site, tracer_provider
from spangrad_openai._call import current_call


class CallTracerProvider(trace.TracerProvider):
    """Spangrad's own tracer provider, with tracers that know where calls are made."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes | None = None,
    ) -> trace.Tracer:
        """See OpenTelemetry."""
        names = (instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        return _CallTracer(tracer_provider().get_tracer(*names))


class _CallTracer(trace.Tracer):
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(  # noqa: PLR0917 - OpenTelemetry's own signature
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        site = current_site()
        call = current_call() if kind is trace.SpanKind.CLIENT else None
        answer = call.answer if call is not None else {}
        span = self._tracer.start_span(
            name,
            _below(site, context),
            kind,
            {**(attributes or {}), **_agent(site), **answer},
            links,
            start_time,
            record_exception,
            set_status_on_exception,
        )
        if call is not None:
            call.spans.append(span)
        return span

    def start_as_current_span(
        self, name: str, context: Context | None = None, *args: Any, **options: Any
    ) -> _AgnosticContextManager[trace.Span]:
        return self._tracer.start_as_current_span(name, _below(current_site(), context), *args, **options)


def _below(site: CallSite | None, context: Context | None) -> Context:
    """The context with the span's parent: the site's span, or one of ours that the program has begun since.

    What the program traces with providers of its own is not ours to join: its spans are not recorded with the rollout.
    """
    current = trace.get_current_span(context)
    ours = current if isinstance(current, ReadableSpan) and _is_ours(current) else None
    if site is not None and (ours is None or _start(site.span) >= _start(ours)):
        return trace.set_span_in_context(site.span, context)
    return trace.set_span_in_context(trace.INVALID_SPAN if ours is None else current, context)


def _agent(site: CallSite | None) -> dict[str, str]:
    return {} if site is None or site.agent is None else {semconv.AGENT_NAME: site.agent}


def _is_ours(span: ReadableSpan) -> bool:
    scope = current_scope()
    return scope is not None and (span.attributes or {}).get(semconv.ROLLOUT_ID) == scope.rollout_id


def _start(span: ReadableSpan) -> int:
    return span.start_time or 0
