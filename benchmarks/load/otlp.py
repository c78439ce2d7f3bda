"""Spans as an OpenTelemetry exporter sends them, in OTLP's JSON form."""

from __future__ import annotations

from typing import Any, Final

_PROMPT: Final = "What is known about this? " * 12


def export(turn: int, number: int, spans: int, resource: dict[str, str]) -> dict[str, Any]:
    """One export request, different for each turn and number: model calls of an agent.

    Args:
        turn: of the measurement.
        number: of the request in its turn, from 0.
        spans: how many it holds.
        resource: attributes that say whose they are.
    """
    trace = f"{turn + 1:016x}{number + 1:016x}"
    made = [
        _span(trace, index, 1_700_000_000_000_000_000 + 1_000_000 * (number * spans + index)) for index in range(spans)
    ]
    scope = {"scope": {"name": "benchmark"}, "spans": made}
    return {"resourceSpans": [{"resource": {"attributes": _pairs(resource)}, "scopeSpans": [scope]}]}


def _span(trace: str, index: int, start: int) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "policy",
        "gen_ai.response.id": f"chatcmpl-{trace}-{index}",
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 32,
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": _PROMPT,
        "gen_ai.completion.0.content": "An answer of some length",
    }
    return {
        "traceId": trace,
        "spanId": f"{trace[12:16]}{trace[24:]}{index + 1:04x}",
        "name": "chat policy",
        "kind": 3,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 500_000),
        "attributes": _pairs(attributes),
        "status": {"code": 1},
    }


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in attributes.items()
    ]
