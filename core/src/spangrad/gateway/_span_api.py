"""`POST /v1/traces`: spans from OpenTelemetry exporters, as OTLP over HTTP in JSON."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from spangrad.errors import SpanError
from spangrad.gateway._engine import EngineError
from spangrad.gateway._errors import json_response
from spangrad.gateway._identity import Caller, read_headers
from spangrad.gateway._request import read_json
from spangrad.gateway._state import GatewayState
from spangrad.spans import Span, from_otlp_json


class SpanApi:
    """The handler of the traces routes.

    Args:
        state: the gateway's.
    """

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def receive(self, request: Request) -> Response:
        """Stores spans; a rollout's key stores them for its own rollout only."""
        headers = read_headers(request.scope)
        caller = self._state.door.identify(request.scope, headers)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise EngineError(
                f"Spans are taken as OTLP/JSON, not as {kind or 'something without a content type'}",
                cure="Set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
                status=415,
            )
        try:
            spans = from_otlp_json(read_json(await request.body()))
        except SpanError as error:
            raise EngineError(error.what, cure=error.cure, status=400) from error
        if caller.entry is not None and caller.entry.closed:
            self._state.late.add("spans", len(spans))
        owned = [_owned(span, caller) for span in spans]
        await self._state.landing.of(self._state.store.submit_spans(owned))
        return json_response({"partialSuccess": {}})


def _owned(span: Span, caller: Caller) -> Span:
    """The span, stamped with the caller's rollout.

    Raises:
        EngineError: 403, it says it is another rollout's.
    """
    if caller.entry is None:
        return span
    access = caller.entry.access
    own = (span.rollout_id in (None, access.rollout_id)) and (span.attempt in (None, access.attempt))
    if not own:
        raise EngineError(
            f"The span {span.span_id} says it belongs to attempt {span.attempt} of rollout {span.rollout_id!r}, and this key "
            f"is for attempt {access.attempt} of {access.rollout_id!r}",
            status=403,
            code="wrong_rollout",
        )
    return replace(span, rollout_id=access.rollout_id, attempt=access.attempt)
