"""The SDK's own way in: a processor for `add_trace_processor`."""

from __future__ import annotations

from typing import Any

from agents.tracing import Span, Trace, TracingProcessor

from spangrad.capture import add_probe
from spangrad_openai_agents._work import WORK, record


class SpangradTracingProcessor(TracingProcessor):
    """Records the agents, tools, handoffs and guardrails of rollouts; for programs that hook things in themselves.

    It sees nothing of runs with tracing disabled, and no ids of tool calls: `OpenAIAgentsIntegration` does. Beside that one it
    changes nothing. Outside a rollout it does nothing.
    """

    def __init__(self) -> None:
        self._remove_probe = add_probe(lambda: WORK.site())  # noqa: PLW0108 - each processor's probe must be its own

    def on_trace_start(self, trace: Trace) -> None:
        """Traces are no pieces of work."""

    def on_trace_end(self, trace: Trace) -> None:
        """Traces are no pieces of work."""

    def on_span_start(self, span: Span[Any]) -> None:
        """Begins the piece of work the span stands for, if any."""
        record(WORK.started, span)

    def on_span_end(self, span: Span[Any]) -> None:
        """Ends it."""
        record(WORK.finished, span)

    def shutdown(self) -> None:
        """No longer tells where the running code is."""
        self._remove_probe()

    def force_flush(self) -> None:
        """Holds nothing back."""
