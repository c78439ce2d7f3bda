"""Each LLM call of a rollout gets one span, which names the HTTP attempt whose answer reached the agent."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import wrapt
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spangrad.capture import deliver_spans, tracer_provider, use_scope
from spangrad.plugins import load_plugins
from spangrad_openai import OpenAIIntegration
from spangrad_openai._spans import _wrapped_methods

if TYPE_CHECKING:
    from integrations.openai.tests.conftest import RecordingServer


def messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def named_calls(spans: list[ReadableSpan]) -> dict[str, tuple[str, str]]:
    """Call id -> rollout and request key, as the spans have them."""
    named = {}
    for span in spans:
        attributes = span.attributes or {}
        rollout, key = attributes["spangrad.rollout.id"], attributes["spangrad.request.key"]
        named[str(attributes["spangrad.call.id"])] = (str(rollout), str(key))
    return named


def answered_calls(server: RecordingServer) -> dict[str, tuple[str, str]]:
    """The same, as the requests that were answered had them."""
    return {
        request.headers["x-spangrad-call"]: (
            request.headers["x-spangrad-rollout"],
            request.headers["x-spangrad-request"],
        )
        for request in server.received
        if request.status == 200
    }


@pytest.mark.usefixtures("attached")
async def test_a_span_names_the_attempt_that_was_answered(server: RecordingServer) -> None:
    spans: list[ReadableSpan] = []
    with deliver_spans(spans.extend):
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine", max_retries=2) as client:
            with use_scope(server.scope("first")):
                await client.chat.completions.create(model="policy", messages=messages("refuse=2"))
            with use_scope(server.scope("second")):
                stream = await client.chat.completions.create(model="policy", messages=messages("s"), stream=True)
                assert [chunk.choices[0].delta.content async for chunk in stream] == ["s", None]
        with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as sync, use_scope(server.scope("third")):
            sync.chat.completions.create(model="policy", messages=messages("sync"))
            sync.chat.completions.with_raw_response.create(model="policy", messages=messages("raw"))

    assert len(spans) == 4
    assert named_calls(spans) == answered_calls(server)
    assert {span.name for span in spans} == {"openai.chat"}


@pytest.mark.usefixtures("attached")
def test_an_agents_span_is_not_taken_for_the_call(server: RecordingServer) -> None:
    spans: list[ReadableSpan] = []
    tracer = tracer_provider().get_tracer("agent")
    with deliver_spans(spans.extend), OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:  # noqa: SIM117
        with use_scope(server.scope("rollout")), tracer.start_as_current_span("agent") as agent:
            client.chat.completions.create(model="policy", messages=messages("hello"))
            client.models.list()

    call, outer = spans
    assert call.parent == agent.get_span_context()
    assert "spangrad.call.id" in (call.attributes or {})
    assert "spangrad.call.id" not in (outer.attributes or {})


@pytest.mark.usefixtures("attached")
def test_calls_outside_a_rollout_make_no_span(server: RecordingServer) -> None:
    spans: list[ReadableSpan] = []
    with deliver_spans(spans.extend), OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
        client.chat.completions.create(model="policy", messages=messages("hello"))

    assert spans == []


@pytest.fixture
def users_spans() -> Iterator[InMemorySpanExporter]:
    """The program's own instrumentation of openai, and where its spans go."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OpenAIInstrumentor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its modules use what pydantic deprecates
        instrumentor.instrument(tracer_provider=provider)
    try:
        yield exporter
    finally:
        instrumentor.uninstrument()
        for owner, name, wrapper in list(_wrapped_methods()):  # which 0.62.4 leaves behind under wrapt 2
            setattr(owner, name, _innermost(wrapper))


def _innermost(wrapper: Any) -> object:
    while isinstance(wrapper, wrapt.FunctionWrapper):
        wrapper = wrapper.__wrapped__
    return wrapper


def test_the_programs_own_instrumentation_is_left_alone_and_nothing_is_doubled(
    server: RecordingServer, users_spans: InMemorySpanExporter
) -> None:
    ours: list[ReadableSpan] = []
    integration = OpenAIIntegration()
    with deliver_spans(ours.extend), OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
        detach = integration.attach()
        assert integration.describe()["spans"] == "left to the program's own instrumentation of openai"
        with use_scope(server.scope("rollout")):
            client.chat.completions.create(model="policy", messages=messages("attached"))
        detach()
        client.chat.completions.create(model="policy", messages=messages("detached"))

    assert ours == []
    first, second = users_spans.get_finished_spans()
    assert (first.attributes or {})["spangrad.call.id"] == server.received[0].headers["x-spangrad-call"]
    assert "spangrad.call.id" not in (second.attributes or {})


def test_the_programs_own_instrumentation_of_threading_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((threading.Thread, "start"), (threading.Thread, "run"), (ThreadPoolExecutor, "submit")):
        monkeypatch.setattr(
            owner, name, getattr(owner, name)
        )  # put back in the end: its own uninstrumenting is not exact
    for name in ("start", "run"):
        monkeypatch.setattr(threading.Timer, name, getattr(threading.Timer, name))
    own = ThreadingInstrumentor()
    own.instrument()
    try:
        start, run = vars(threading.Thread)["start"], vars(threading.Thread)["run"]
        integration = OpenAIIntegration()
        detach = integration.attach()
        assert integration.describe()["threads"] == "carried by the program's own instrumentation of threading"
        detach()
        assert own.is_instrumented_by_opentelemetry
        assert vars(threading.Thread)["start"] is start
        assert vars(threading.Thread)["run"] is run
    finally:
        own.uninstrument()


def test_without_the_instrumentor_calls_are_still_stamped_and_the_state_says_so(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.openai", None)
    integration = OpenAIIntegration()
    detach = integration.attach()
    try:
        assert integration.describe()["spans"].startswith(
            "not recorded: opentelemetry-instrumentation-openai cannot be"
        )
        with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
            client.chat.completions.create(model="policy", messages=messages("hello"))
    finally:
        detach()

    assert server.received[0].headers["x-spangrad-rollout"] == "rollout"
    assert "training does not need them" in caplog.text


def test_an_instrumentor_that_fails_half_way_is_taken_out_again(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openai.resources import embeddings  # noqa: PLC0415 - the part that goes missing

    monkeypatch.delattr(embeddings, "Embeddings")
    integration = OpenAIIntegration()
    detach = integration.attach()
    try:
        assert integration.describe()["spans"].startswith("not recorded: opentelemetry-instrumentation-openai failed: ")
        with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
            client.chat.completions.create(model="policy", messages=messages("hello"))
    finally:
        detach()

    assert server.received[0].headers["x-spangrad-rollout"] == "rollout"


def test_the_plugin_registers_the_integration_without_importing_openai() -> None:
    plugins = load_plugins({"SPANGRAD_PLUGINS": "openai"})
    assert plugins.integrations.get("openai").framework == "openai"

    script = "import sys, spangrad_openai.plugin; print(sorted({m.split('.')[0] for m in sys.modules} & {'openai', 'torch'}))"
    listed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert listed.stdout.strip() == "[]"


def test_the_instrumentor_does_not_remember_every_answer_of_the_responses_api_for_good() -> None:
    from opentelemetry.instrumentation.openai.v1 import responses_wrappers  # noqa: PLC0415 - imported by attaching

    before = responses_wrappers.responses
    detach = OpenAIIntegration().attach()
    try:
        kept: dict[str, Any] = responses_wrappers.responses
        for number in range(1000):
            kept[f"response-{number}"] = number
        assert list(kept)[-1] == "response-999"
        assert len(kept) == 256
    finally:
        detach()
    assert responses_wrappers.responses is before
    assert "response-999" not in before
