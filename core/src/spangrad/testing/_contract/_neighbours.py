"""Contract: the program's own instrumentation works as ever beside the integration, and nothing is doubled."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spangrad.testing._contract._checks import ANSWER, QUESTION, SOLVER, ContractChecks, check_transitions
from spangrad.testing._contract._expect import holds, same
from spangrad.testing._contract._places import put_back
from spangrad.testing._contract._stage import Stage

_REQUEST: Final = "request"
"""The program's own span around what it asks."""


class NeighbourChecks(ContractChecks):
    """Others who listen."""

    @pytest.mark.parametrize("first", ["program", "spangrad"])
    async def test_the_programs_own_instrumentor_gets_its_spans_and_nothing_is_doubled(
        self, stage: Stage, instrumentor: str, first: str
    ) -> None:
        """Set up before the integration is attached, or after."""
        module, _, name = self.instrumentors[instrumentor].partition(":")
        make = getattr(importlib.import_module(module), name)
        self.integration().attach()()  # what attaching imports is there from now on
        listener, packages = _Listener(), ("openai", *self.packages)
        with put_back(packages), listener.instrumented(make):
            expected = await self._heard(stage, listener)
        holds({name for name, _ in expected} > {_REQUEST}, f"{instrumentor} made no span even without the integration")
        with put_back(packages), ExitStack() as running:
            blocks = [listener.instrumented(make), self.attached()]
            for block in blocks if first == "program" else reversed(blocks):
                running.enter_context(block)
            async with stage.rollout():
                found = await self._heard(stage, listener)
        same(found, expected, f"The spans of {instrumentor} and their parents")
        self._check_asked_once(stage)

    async def test_the_programs_global_tracer_provider_is_left_alone(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Frameworks that trace themselves send their spans there; so they must after as before."""
        listener = _Listener()
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", listener.provider)  # which can be set once in a process
        expected = await self._heard(stage, listener)
        with self.attached():
            async with stage.rollout():
                found = await self._heard(stage, listener)
                same(trace.get_tracer_provider(), listener.provider, "The global tracer provider")
        same(found, expected, "The spans of the program's own provider and their parents")
        self._check_asked_once(stage)
        self.check_solver_tree(stage)

    async def _heard(self, stage: Stage, listener: _Listener) -> list[tuple[str, str]]:
        """Asks once inside a span of the program's. Returns the program's spans: names, and those of their parents."""
        listener.exporter.clear()
        solver = await self.solver(stage.endpoint)
        with listener.provider.get_tracer("program").start_as_current_span(_REQUEST):
            same(await self.ask(solver, self.ways[0], QUESTION), ANSWER, "The answer")
        return _names_and_parents(list(listener.exporter.get_finished_spans()))

    def _check_asked_once(self, stage: Stage) -> None:
        same(stage.questions(), [QUESTION], "The questions of the calls")
        same(stage.agents(), [SOLVER], "The agents of the calls")
        check_transitions(stage, calls=1)
        self.check_spans(stage)


class _Listener:
    """A tracer provider of the program's."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @contextmanager
    def instrumented(self, make: Callable[[], Any]) -> Iterator[None]:
        """Sets up an instrumentor for the block, as programs do."""
        instrumentor = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what an instrumentor's modules think of their own dependencies
            instrumentor.instrument(tracer_provider=self.provider)
        # It looks for itself whether it supports what is installed, and where it does not, it only logs that and does nothing.
        holds(
            instrumentor.is_instrumented_by_opentelemetry,
            f"{type(instrumentor).__name__} does nothing here, for it supports "
            f"{' and '.join(instrumentor.instrumentation_dependencies())}: install the release of it that goes with what is tested",
        )
        try:
            yield
        finally:
            instrumentor.uninstrument()


def _names_and_parents(spans: list[ReadableSpan]) -> list[tuple[str, str]]:
    names = {span.context.span_id: span.name for span in spans}

    def parent(span: ReadableSpan) -> str:
        return "nobody" if span.parent is None else names.get(span.parent.span_id, "a span the program never sees")

    return sorted((span.name, parent(span)) for span in spans)
