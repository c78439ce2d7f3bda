"""Attaching changes nothing outside a rollout, and detaching leaves everything as it was."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai import OpenAI, Stream
from openai._base_client import AsyncAPIClient, SyncAPIClient
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from opentelemetry.instrumentation.openai.shared import chat_wrappers
from opentelemetry.instrumentation.openai.shared.config import Config

from spangrad.capture import use_scope
from spangrad.errors import PluginError
from spangrad_openai import OpenAIIntegration
from spangrad_openai._client_patch import check

if TYPE_CHECKING:
    from integrations.openai.tests.conftest import RecordingServer

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]


def owners() -> Iterator[Any]:
    """Every class and module that attaching may touch."""
    yield from (SyncAPIClient, AsyncAPIClient, threading.Thread, threading.Timer, ThreadPoolExecutor)
    yield from (Config, chat_wrappers)
    for name, module in list(sys.modules.items()):
        if name.startswith("openai.resources"):
            yield from (value for value in vars(module).values() if isinstance(value, type))


def attributes() -> dict[tuple[int, str], object]:
    """Owner and name -> value, in the owner's order, of all that attaching may touch."""
    return {(id(owner), name): value for owner in list(owners()) for name, value in list(vars(owner).items())}


def assert_same(before: dict[tuple[int, str], object]) -> None:
    after = attributes()
    assert list(after) == list(before)
    assert [key for key, value in after.items() if value is not before[key]] == []


@pytest.fixture(autouse=True)
def resources() -> None:
    """Attaching imports modules of openai; what follows looks at attributes, not at what is imported."""
    OpenAIIntegration().attach()()


def test_detaching_restores_every_class_exactly() -> None:
    before = attributes()

    detach = OpenAIIntegration().attach()
    assert [key for key, value in attributes().items() if before.get(key) is not value] != []
    detach()

    assert_same(before)


def test_the_hooks_stay_until_the_last_detach_and_a_detach_counts_once() -> None:
    before = attributes()
    first, second = OpenAIIntegration(), OpenAIIntegration()

    detach_first = first.attach()
    attached = attributes()
    detach_second = second.attach()
    assert_same(attached)
    detach_first()
    detach_first()
    assert_same(attached)
    assert second.describe()["client"] == "patched"
    detach_second()

    assert_same(before)
    assert second.describe()["client"] == "not attached"


def test_attaching_from_many_threads_patches_once() -> None:
    before = attributes()
    with ThreadPoolExecutor(8) as pool:
        detaches = list(pool.map(lambda _: OpenAIIntegration().attach(), range(32)))
        list(pool.map(lambda detach: detach(), detaches))

    assert_same(before)


def wire(server: RecordingServer, client: OpenAI) -> list[dict[str, Any]]:
    """What one plain and one streamed call put on the wire."""
    server.received.clear()
    client.chat.completions.create(model="policy", messages=HELLO)
    list(client.chat.completions.create(model="policy", messages=HELLO, stream=True))
    return [{"path": request.path, "body": request.body, **request.headers} for request in server.received]


def test_without_a_scope_requests_and_answers_are_those_of_an_unpatched_client(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:
        expected = wire(server, client)

        detach = OpenAIIntegration().attach()
        try:
            assert wire(server, client) == expected
            stream = client.chat.completions.create(model="policy", messages=HELLO, stream=True)
            assert type(stream) is Stream
            stream.close()
        finally:
            detach()


def test_inside_a_scope_requests_to_another_host_are_those_of_an_unpatched_client(
    server: RecordingServer, stranger: RecordingServer
) -> None:
    with OpenAI(base_url=f"{stranger.url}/v1", api_key="mine") as client:
        expected = wire(stranger, client)

        detach = OpenAIIntegration().attach()
        try:
            with use_scope(server.scope("rollout")):
                assert wire(stranger, client) == expected
        finally:
            detach()
    assert server.received == []


@pytest.mark.usefixtures("attached")
def test_inside_a_scope_return_types_are_openais(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
        assert type(client.chat.completions.create(model="policy", messages=HELLO)) is ChatCompletion
        stream = client.chat.completions.create(model="policy", messages=HELLO, stream=True)
        assert isinstance(stream, Stream)
        assert [type(chunk) for chunk in stream] == [ChatCompletionChunk] * 3
        assert client.models.list().data == []


@pytest.mark.usefixtures("attached")
def test_openais_errors_pass_through(server: RecordingServer) -> None:
    refused: list[ChatCompletionMessageParam] = [{"role": "user", "content": "refuse=9"}]
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine", max_retries=0) as client, use_scope(server.scope("r")):
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model="policy", messages=refused)
        assert type(raised.value) is openai.RateLimitError
        with pytest.raises(openai.APIConnectionError):
            client.with_options(http_client=None, base_url="http://127.0.0.1:1/v1").models.list()
        with pytest.raises(TypeError, match="messages"):
            client.chat.completions.create(model="policy")  # type: ignore[call-overload]  # the mistake under test


@pytest.mark.usefixtures("attached")
def test_a_request_key_that_the_agent_chose_is_kept(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
        client.post(
            "/chat/completions",
            cast_to=ChatCompletion,
            body={"model": "policy", "messages": HELLO},
            options={"idempotency_key": "chosen"},
        )

    assert server.received[0].headers["x-spangrad-request"] == "chosen"


@pytest.mark.usefixtures("attached")
@pytest.mark.parametrize("spelling", ["Authorization", "authorization", "AUTHORIZATION"])
def test_the_rollouts_key_is_the_only_one_sent(server: RecordingServer, spelling: str) -> None:
    headers = {spelling: "Bearer from-the-client"}
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="mine", default_headers=headers) as client,
        use_scope(server.scope("rollout")),
    ):
        client.chat.completions.create(model="policy", messages=HELLO)
        client.chat.completions.create(model="policy", messages=HELLO, extra_headers={spelling: "Bearer from-the-call"})

    assert [r.headers.getlist("authorization") for r in server.received] == [["Bearer sk-spangrad-rollout"]] * 2


@pytest.mark.usefixtures("attached")
def test_a_synchronous_call_leaves_the_threads_event_loop_alone(server: RecordingServer) -> None:
    def call() -> bool:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
                client.chat.completions.create(model="policy", messages=HELLO)
            return asyncio.get_event_loop() is loop
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result()


def test_a_wrapper_that_somebody_put_on_top_stays_and_ours_beneath_does_nothing(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    detach = OpenAIIntegration().attach()
    ours = vars(SyncAPIClient)["_prepare_options"]

    def theirs(client: Any, options: Any) -> Any:
        seen.append(options.url)
        return ours(client, options)

    monkeypatch.setattr(SyncAPIClient, "_prepare_options", theirs)
    detach()

    assert vars(SyncAPIClient)["_prepare_options"] is theirs
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("rollout")):
        client.models.list()
        again = OpenAIIntegration().attach()
        client.models.list()
        again()

    assert seen == ["/models", "/models"]
    assert ["x-spangrad-rollout" in request.headers for request in server.received] == [False, True]


def test_an_openai_of_another_shape_is_refused_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncAPIClient, "_process_response", lambda _, response: response)
    before = attributes()

    with pytest.raises(PluginError) as raised:
        OpenAIIntegration().attach()

    assert f"openai {openai.__version__}: AsyncAPIClient._process_response has another shape" in raised.value.what
    assert raised.value.cure.startswith('pip install "openai')
    assert_same(before)


def test_a_missing_method_is_refused() -> None:
    class Changed(SyncAPIClient):
        pass

    with pytest.raises(PluginError, match=r"Changed\._prepare_options does not exist"):
        check(Changed, "_prepare_options")


@pytest.mark.usefixtures("attached")
def test_a_second_copy_of_the_patch_is_refused() -> None:
    with pytest.raises(PluginError, match="by another copy of spangrad-openai"):
        check(SyncAPIClient, "_prepare_options")
