"""What a span of the SDK says about a piece of work. Pure functions of the span's data, read by the names of its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spangrad import semconv


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work that begins."""

    operation: str
    name: str
    agent: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def piece_of(data: Any) -> Piece | None:
    """The piece of work a span's data stands for.

    Turns, model calls and a run as a whole are none of their own: what happens in them belongs to the agent around them, and
    the calls are recorded by the gateway.
    """
    kind = data.type
    if kind == "agent":
        return Piece(semconv.AGENT_OPERATION, data.name, data.name)
    if kind == "function":
        return Piece(semconv.TOOL_OPERATION, data.name, None, {semconv.TOOL_NAME: data.name})
    if kind == "handoff":
        return Piece(semconv.HANDOFF_OPERATION, data.to_agent or "")
    if kind in {"guardrail", "custom"}:
        return Piece(semconv.NODE_OPERATION, data.name, None, {semconv.NODE: data.name})
    return None


def outcome_of(data: Any) -> Mapping[str, Any]:
    """Attributes known only when the work is over; arguments and results are absent where the program keeps them out of traces."""
    kind = data.type
    if kind == "function":
        return {semconv.TOOL_ARGUMENTS: data.input, semconv.TOOL_RESULT: _as_read(data.output)}
    if kind == "handoff":
        return {semconv.HANDOFF_TARGET: data.to_agent}
    if kind == "guardrail":
        return {semconv.GUARDRAIL_TRIGGERED: data.triggered}
    return {}


def error_text(error: Mapping[str, Any] | None) -> str | None:
    """The text of an error the SDK wrote onto a span."""
    if error is None:
        return None
    detail = (error.get("data") or {}).get("error")
    return error["message"] if detail is None else f"{error['message']}: {detail}"


def _as_read(result: Any) -> str | None:
    """A tool's result as the model gets to read it."""
    try:
        return None if result is None else str(result)
    except Exception as error:  # noqa: BLE001 - the program's objects may raise anything when made text
        return f"<{type(result).__name__} whose text raises {type(error).__name__}>"
