"""Calls made inside a framework's work: whose they are, and where their spans go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from spangrad import semconv
from spangrad.capture import CallSite, WorkRecorder, add_probe, deliver_spans, tracer_provider, use_scope

if TYPE_CHECKING:
    from integrations.openai.tests.conftest import RecordingServer


class Framework:
    """A framework that knows in a ContextVar which of its agents is running, as all of them do."""

    def __init__(self) -> None:
        self.recorder = WorkRecorder("framework")
        self._running: ContextVar[str | None] = ContextVar("running", default=None)

    def probe(self) -> CallSite | None:
        return self.recorder.site(self._running.get())

    @contextmanager
    def agent(self, name: str) -> Iterator[None]:
        self.recorder.begin(name, name, operation=semconv.AGENT_OPERATION, agent=name)
        token = self._running.set(name)
        try:
            yield
        finally:
            self._running.reset(token)
            self.recorder.end(name)


@pytest.fixture
def framework() -> Iterator[Framework]:
    framework = Framework()
    remove = add_probe(framework.probe)
    yield framework
    remove()


@pytest.fixture
async def client(server: RecordingServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
        yield client


@pytest.fixture
def sync_client(server: RecordingServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
        yield client


def messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def agents_sent(server: RecordingServer) -> dict[str, str | None]:
    return {request.said: request.headers.get("x-spangrad-agent") for request in server.received}


def above(spans: list[ReadableSpan]) -> dict[str, tuple[str | None, object]]:
    """Call id -> name of the span above the call's, and the call's agent."""
    names = {span.context.span_id: span.name for span in spans}
    return {
        str(span.attributes["spangrad.call.id"]): (
            span.parent and names.get(span.parent.span_id, "a stranger"),
            span.attributes.get(semconv.AGENT_NAME),
        )
        for span in spans
        if span.attributes is not None and "spangrad.call.id" in span.attributes
    }


def expected(
    server: RecordingServer, places: dict[str, tuple[str | None, object]]
) -> dict[str, tuple[str | None, object]]:
    return {request.headers["x-spangrad-call"]: places[request.said] for request in server.received}


@pytest.mark.usefixtures("attached")
async def test_concurrent_agents_calls_carry_their_names_and_lie_below_their_spans(
    server: RecordingServer, framework: Framework, client: AsyncOpenAI
) -> None:
    async def run(name: str) -> None:
        with framework.agent(name):
            await client.chat.completions.create(model="policy", messages=messages(f"plain {name}"))
            stream = await client.chat.completions.create(
                model="policy", messages=messages(f"stream {name}"), stream=True
            )
            async for _ in stream:
                pass

    spans: list[ReadableSpan] = []
    with deliver_spans(spans.extend), use_scope(server.scope("r")):
        await asyncio.gather(run("writer"), run("prüfer"), run("editor"))

    assert agents_sent(server)["plain prüfer"] == "pr%C3%BCfer"
    assert agents_sent(server)["stream writer"] == "writer"
    places: dict[str, tuple[str | None, object]] = {
        f"{way} {name}": (f"invoke_agent {name}", name)
        for way in ("plain", "stream")
        for name in ("writer", "prüfer", "editor")
    }
    assert above(spans) == expected(server, places)


@pytest.mark.usefixtures("attached")
def test_synchronous_calls_and_streams_too(server: RecordingServer, framework: Framework, sync_client: OpenAI) -> None:
    spans: list[ReadableSpan] = []
    with deliver_spans(spans.extend), use_scope(server.scope("r")), framework.agent("writer"):
        sync_client.chat.completions.create(model="policy", messages=messages("plain"))
        list(sync_client.chat.completions.create(model="policy", messages=messages("stream"), stream=True))
        sync_client.chat.completions.with_raw_response.create(model="policy", messages=messages("raw"))

    place = ("invoke_agent writer", "writer")
    assert above(spans) == expected(server, dict.fromkeys(("plain", "stream", "raw"), place))


@pytest.mark.usefixtures("attached")
def test_what_the_scope_says_of_the_agent_goes_before_what_a_framework_says(
    server: RecordingServer, framework: Framework, sync_client: OpenAI
) -> None:
    with use_scope(server.scope("r").named("scope's")), framework.agent("framework's"):
        sync_client.chat.completions.create(model="policy", messages=messages("hello"))

    assert agents_sent(server) == {"hello": "scope's"}


@pytest.mark.usefixtures("attached")
def test_a_later_span_of_ours_is_nearer_than_the_frameworks(
    server: RecordingServer, framework: Framework, sync_client: OpenAI
) -> None:
    tracer = tracer_provider().get_tracer("test")
    spans: list[ReadableSpan] = []
    with deliver_spans(spans.extend), use_scope(server.scope("r")):
        with framework.agent("writer"), tracer.start_as_current_span("think"):
            sync_client.chat.completions.create(model="policy", messages=messages("inside"))
        with tracer.start_as_current_span("before"), framework.agent("writer"):
            sync_client.chat.completions.create(model="policy", messages=messages("outside"))

    places: dict[str, tuple[str | None, object]] = {
        "inside": ("think", "writer"),
        "outside": ("invoke_agent writer", "writer"),
    }
    assert above(spans) == expected(server, places)


@pytest.mark.usefixtures("attached")
def test_the_programs_own_span_is_current_in_the_call_but_not_above_its_span(
    server: RecordingServer, sync_client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[trace.Span] = []
    post = sync_client.chat.completions._post

    def watching(*args: object, **kwargs: object) -> object:
        seen.append(trace.get_current_span())
        return post(*args, **kwargs)  # type: ignore[call-overload]  # whatever openai passes

    monkeypatch.setattr(sync_client.chat.completions, "_post", watching)
    spans: list[ReadableSpan] = []
    program = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    with deliver_spans(spans.extend), use_scope(server.scope("r")), program.start_as_current_span("request") as own:
        sync_client.chat.completions.create(model="policy", messages=messages("hello"))

    assert seen == [own]
    assert above(spans) == expected(server, {"hello": (None, None)})
    assert "traceparent" not in server.received[0].headers


@pytest.mark.usefixtures("attached")
async def test_nothing_is_left_in_the_callers_context(
    server: RecordingServer, framework: Framework, client: AsyncOpenAI, sync_client: OpenAI
) -> None:
    with use_scope(server.scope("r")), framework.agent("writer"):
        before = dict(context.get_current())
        closed = await client.chat.completions.create(model="policy", messages=messages("a b c"), stream=True)
        await anext(aiter(closed))
        await closed.close()
        left = sync_client.chat.completions.create(model="policy", messages=messages("a b c"), stream=True)
        next(iter(left))
        never = client.chat.completions.create(model="policy", messages=messages("never"))
        never.close()
        cancelled = asyncio.create_task(client.chat.completions.create(model="policy", messages=messages("cancelled")))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert dict(context.get_current()) == before
        left.close()


@pytest.mark.usefixtures("attached")
def test_a_probe_that_raises_does_not_break_the_call(
    server: RecordingServer, sync_client: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> CallSite | None:
        raise RuntimeError("the framework changed")

    remove = add_probe(broken)
    try:
        with use_scope(server.scope("r")):
            answer = sync_client.chat.completions.create(model="policy", messages=messages("hello"))
    finally:
        remove()

    assert answer.choices[0].message.content == "hello"
    assert agents_sent(server) == {"hello": None}
    assert [record.message for record in caplog.records if record.name == "spangrad.capture"] == [
        "A framework's probe failed, so calls may lack their agent: RuntimeError: the framework changed"
    ]


@pytest.mark.usefixtures("attached")
def test_a_coroutine_function_still_gives_a_coroutine(server: RecordingServer) -> None:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine")
    with use_scope(server.scope("r")):
        call = client.chat.completions.create(model="policy", messages=messages("hello"))
        assert asyncio.iscoroutine(call)
        call.close()
