"""Other people's trace processors stay, and nothing of a rollout is exported to the vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import Agent, Runner, function_tool, set_trace_processors
from agents.tracing import Span, Trace, TracingProcessor, get_trace_provider
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from integrations.openai_agents.tests.conftest import hooked_in, tool_call
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spangrad.capture import current_site
from spangrad_openai_agents import OpenAIAgentsIntegration

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def run(stage: Stage, rollout_id: str | None) -> None:
    """One run with a tool, inside a rollout or outside."""
    stage.answers(tool_call("add", a=1, b=1), "2")
    agent = Agent(name="solver", tools=[add])
    if rollout_id is None:
        await Runner.run(agent, "1+1?")
        return
    with stage.rollout(rollout_id):
        await Runner.run(agent, "1+1?")


class Log(TracingProcessor):
    """A processor of the program's own."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.seen.append(f"trace {trace.name}")

    def on_trace_end(self, trace: Trace) -> None:
        self.seen.append(f"end of trace {trace.name}")

    def on_span_start(self, span: Span[Any]) -> None:
        self.seen.append(f"span {span.span_data.type}")

    def on_span_end(self, span: Span[Any]) -> None:
        self.seen.append(f"end of span {span.span_data.type}")

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


async def test_a_processor_of_the_programs_own_sees_the_same_with_and_without(stage: Stage) -> None:
    log = Log()
    set_trace_processors([log])
    await run(stage, None)
    plain, log.seen = log.seen, []
    with hooked_in():
        await run(stage, "rollout")

    assert log.seen == plain
    assert "span function" in plain


async def test_replacing_the_processors_loses_nothing(stage: Stage) -> None:
    with hooked_in():
        set_trace_processors([])
        await run(stage, "rollout")

    assert stage.tree() == ["invoke_agent solver", "  execute_tool add"]


async def test_openinference_beside_it_records_its_own_and_doubles_nothing(stage: Stage) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OpenAIAgentsInstrumentor()
    with hooked_in():
        instrumentor.instrument(tracer_provider=provider)
        try:
            await run(stage, "rollout")
        finally:
            instrumentor.uninstrument()

    theirs = [span.name for span in exporter.get_finished_spans()]
    assert "solver" in theirs
    assert "add" in theirs
    assert stage.tree() == ["invoke_agent solver", "  execute_tool add"]
    assert stage.trained() == ["solver", "solver"]


class Ingest(BackendSpanExporter):
    """The SDK's own exporter, but for sending."""

    def __init__(self, **options: Any) -> None:
        super().__init__(api_key="sk-theirs", **options)
        self.sent: list[str] = []

    def export(self, items: list[Trace | Span[Any]]) -> None:
        self.sent += ["trace" if isinstance(item, Trace) else item.span_data.type for item in items]


async def exported(
    stage: Stage, rollout_id: str | None, integration: OpenAIAgentsIntegration, **options: Any
) -> set[str]:
    """What the SDK's batch processor exports of one run."""
    exporter = Ingest(**options)
    processor = BatchTraceProcessor(exporter)
    set_trace_processors([processor])
    with hooked_in(integration):
        await run(stage, rollout_id)
        get_trace_provider().shutdown()  # sends what is queued
    return set(exporter.sent)


async def test_nothing_of_a_rollout_is_exported_to_the_vendor(stage: Stage) -> None:
    assert await exported(stage, "rollout", OpenAIAgentsIntegration()) == set()
    assert stage.tree() == ["invoke_agent solver", "  execute_tool add"]


async def test_it_is_where_that_is_asked_for(stage: Stage) -> None:
    kept = await exported(stage, "rollout", OpenAIAgentsIntegration(keep_vendor_export=True))

    assert kept >= {"trace", "agent", "function"}
    assert await exported(stage, "another", OpenAIAgentsIntegration()) == set()


async def test_an_exporter_to_a_host_of_the_programs_own_is_left_alone(stage: Stage) -> None:
    kept = await exported(stage, "rollout", OpenAIAgentsIntegration(), endpoint="http://127.0.0.1:9/ingest")

    assert kept >= {"trace", "agent", "function"}


async def test_what_happens_outside_rollouts_is_exported_as_ever(stage: Stage) -> None:
    assert await exported(stage, None, OpenAIAgentsIntegration()) >= {"trace", "agent", "function"}


def test_outside_of_any_run_there_is_no_call_site() -> None:
    with hooked_in():
        assert current_site() is None
