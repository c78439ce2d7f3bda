"""Starting, stopping, holding and interrupting: nothing hangs, and what was sampled is recorded."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from spangrad.errors import ConfigError, GatewayError
from spangrad.gateway import Address, Gateway, Route, RouteTable, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, Piece, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, CallStatus

MakeGateway = Callable[..., Gateway]
CHAT = "/v1/chat/completions"


def body(text: str = "x", **fields: object) -> dict[str, object]:
    return {"model": "model", "messages": [{"role": "user", "content": text}], **fields}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Hold:
    """A script that samples one piece, reports it, and then never goes on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.cancelled = threading.Event()
        self.sampler = ScriptedSampler(self.script)
        self.engine = TokenEngine(self.sampler, ByteChatFormat(), "scripted")

    def script(self, _: ScriptedPrompt) -> list[Piece]:
        return ["partial", self.wait, "never"]

    async def wait(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def hold() -> Hold:
    return Hold()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def post(url: str, key: str, **fields: object) -> httpx.Response:
    return httpx.post(url + CHAT, json=body(**fields), headers=bearer(key), timeout=30, trust_env=False)  # type: ignore[arg-type]  # `text` is a str


def the_call_once_it_is_recorded(store: Store, gateway: Gateway) -> Call:
    """Closing waits until calls in flight have been recorded."""
    gateway.close_rollout("r", 1).result(timeout=10)
    (call,) = store.calls("r")
    return call


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_that_hangs_up_stops_the_sampling_and_leaves_an_undelivered_call(
    make_gateway: MakeGateway, gateway_store: Store, hold: Hold, stream: bool
) -> None:
    gateway = make_gateway(hold.engine)
    key = gateway.open_rollout("r", 1).api_key
    data = json.dumps(body(stream=stream)).encode()
    host, port = gateway.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        assert hold.reached.wait(10)
    assert hold.cancelled.wait(10)
    call = the_call_once_it_is_recorded(gateway_store, gateway)
    assert (call.status, call.choices[0].token_ids) == (CallStatus.UNDELIVERED, tuple(b"partial"))
    assert "went away" in call.reason
    assert hold.sampler.finished == 0


@pytest.mark.parametrize("stream", [False, True])
def test_closing_a_rollout_stops_its_calls_in_flight_and_no_others(
    make_gateway: MakeGateway, gateway_store: Store, background: ThreadPoolExecutor, hold: Hold, stream: bool
) -> None:
    gateway = make_gateway(hold.engine)
    access = gateway.open_rollout("r", 1)
    answer = background.submit(post, gateway.base_url, access.api_key, stream=stream)
    assert hold.reached.wait(10)
    tally = gateway.close_rollout("r", 1).result(timeout=10)
    assert (tally.calls, tally.answered) == (1, 0)
    (call,) = gateway_store.calls("r")
    assert (call.status, call.choices[0].token_ids) == (CallStatus.UNDELIVERED, tuple(b"partial"))
    response = answer.result(timeout=10)
    assert "is closed" in response.text
    assert response.status_code == (200 if stream else 409)
    assert "[DONE]" not in response.text


def test_stopping_the_gateway_answers_calls_in_flight_and_records_them(
    make_gateway: MakeGateway, gateway_store: Store, background: ThreadPoolExecutor, hold: Hold
) -> None:
    gateway = make_gateway(hold.engine)
    access = gateway.open_rollout("r", 1)
    answer = background.submit(post, gateway.base_url, access.api_key)
    assert hold.reached.wait(10)
    gateway.stop()
    assert answer.result(timeout=10).status_code == 503
    (call,) = gateway_store.calls("r")
    assert (call.status, call.reason) == (CallStatus.UNDELIVERED, "The gateway is stopping")
    assert gateway.close_rollout("r", 1).result(timeout=10).calls == 1


def test_paused_requests_wait_and_then_go_on(
    make_gateway: MakeGateway, gateway_store: Store, background: ThreadPoolExecutor
) -> None:
    sampler = ScriptedSampler(lambda prompt: f"version {prompt.policy_version}")
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    key = gateway.open_rollout("r", 1).api_key
    gateway.pause()
    answers = [background.submit(post, gateway.base_url, key) for _ in range(5)]
    while (health := httpx.get(f"{gateway.base_url}/health", trust_env=False).json())["in_flight"] < 5:
        assert health["paused"] is True
    assert sampler.started == 0
    sampler.policy_version = 1
    gateway.resume()
    texts = {answer.result(timeout=10).json()["choices"][0]["message"]["content"] for answer in answers}
    assert texts == {"version 1"}
    assert {call.policy_version for call in gateway_store.calls("r")} == {1}


def test_a_call_held_by_a_pause_can_still_be_closed(
    make_gateway: MakeGateway, gateway_store: Store, background: ThreadPoolExecutor
) -> None:
    gateway = make_gateway(lambda _: "x")
    key = gateway.open_rollout("r", 1).api_key
    gateway.pause()
    answer = background.submit(post, gateway.base_url, key)
    while httpx.get(f"{gateway.base_url}/health", trust_env=False).json()["in_flight"] < 1:
        pass
    gateway.close_rollout("r", 1).result(timeout=10)
    assert answer.result(timeout=10).status_code == 409
    assert [call.status for call in gateway_store.calls("r")] == [CallStatus.UNDELIVERED]


def test_a_call_is_stamped_with_the_oldest_version_that_sampled_it(
    make_gateway: MakeGateway, gateway_store: Store
) -> None:
    async def publish() -> None:
        sampler.policy_version += 1

    sampler = ScriptedSampler(lambda _: ["a", publish, "b"], policy_version=4)
    gateway = make_gateway(TokenEngine(sampler, ByteChatFormat(), "scripted"))
    post(gateway.base_url, gateway.open_rollout("r", 1).api_key)
    assert [call.policy_version for call in gateway_store.calls("r")] == [4]


def test_a_port_in_use_is_named_with_the_cure(make_gateway: MakeGateway) -> None:
    port = int(make_gateway(lambda _: "x").base_url.rpartition(":")[2])
    with pytest.raises(GatewayError, match=f"Port {port} on 127.0.0.1 is in use.*--port 0"):
        make_gateway(lambda _: "x", address=Address(port=port))


def test_a_reserved_port_is_nobody_elses_and_refuses_until_it_is_listened_on(make_gateway: MakeGateway) -> None:
    address = Address()
    address.reserve()
    address.reserve()
    url = address.base_url
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)
    others = [Address() for _ in range(20)]
    for other in others:
        other.reserve()
    assert len({url, *(other.base_url for other in others)}) == 21
    assert make_gateway(lambda _: "x", address=address).base_url == url
    assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "ok"


def test_of_two_that_reserved_one_port_the_second_to_listen_is_told(make_gateway: MakeGateway) -> None:
    first = Address()
    first.reserve()
    second = Address(port=int(first.base_url.rpartition(":")[2]))
    second.reserve()
    make_gateway(lambda _: "x", address=first)
    with pytest.raises(GatewayError, match="is in use"):
        make_gateway(lambda _: "x", address=second)


def test_calls_without_a_rollout_are_counted(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(lambda _: "x")
    post(gateway.base_url, gateway.open_rollout("r", 1).api_key)
    post(gateway.base_url, gateway.evaluator_key)
    assert gateway.orphan_calls == 0
    post(gateway.base_url, "no-key-needed")
    assert gateway.orphan_calls == 1


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 70000)])
def test_an_address_that_is_not_ours_is_an_error(make_gateway: MakeGateway, host: str, port: int) -> None:
    with pytest.raises(GatewayError, match="Cannot listen"):
        make_gateway(lambda _: "x", address=Address(host, port))


def test_a_gateway_on_every_address_names_one_that_can_be_called(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(lambda _: "x", address=Address("0.0.0.0"))  # noqa: S104 - what the test is about
    assert gateway.base_url.startswith("http://127.0.0.1:")
    assert httpx.get(f"{gateway.base_url}/health", trust_env=False).json()["status"] == "ok"


def test_a_gateway_paused_before_its_start_holds_its_first_request(
    gateway_store: Store, background: ThreadPoolExecutor
) -> None:
    sampler = ScriptedSampler(lambda _: "x")
    gateway = Gateway(gateway_store, [Route("model", TokenEngine(sampler, ByteChatFormat(), "scripted"))])
    gateway.pause()
    with gateway:
        answer = background.submit(post, gateway.base_url, gateway.open_rollout("r", 1).api_key)
        while httpx.get(f"{gateway.base_url}/health", trust_env=False).json()["in_flight"] < 1:
            pass
        assert sampler.started == 0
        gateway.resume()
        assert answer.result(timeout=10).status_code == 200


def test_a_stopped_gateway_opens_nothing_and_can_be_started_again(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(lambda _: "x")
    gateway.stop()
    gateway.stop()
    with pytest.raises(GatewayError, match="not running"):
        gateway.open_rollout("r", 1)
    gateway.start()
    assert post(gateway.base_url, gateway.open_rollout("r", 1).api_key).status_code == 200


def test_stopping_leaves_no_thread_behind(gateway_store: Store) -> None:
    before = threading.active_count()
    engine = TokenEngine(ScriptedSampler(lambda _: "x"), ByteChatFormat(), "scripted")
    with Gateway(gateway_store, [Route("model", engine)]) as gateway:
        post(gateway.base_url, gateway.open_rollout("r", 1).api_key)
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_a_store_that_cannot_be_written_fails_the_call_and_says_why(tmp_path: Path) -> None:
    store = open_store(tmp_path / "closed.db")
    engine = TokenEngine(ScriptedSampler(lambda _: "x"), ByteChatFormat(), "scripted")
    with Gateway(store, [Route("model", engine)]) as gateway:
        key = gateway.open_rollout("r", 1).api_key
        store.close()
        response = post(gateway.base_url, key)
        streamed = post(gateway.base_url, key, stream=True)
        tally = gateway.close_rollout("r", 1).result(timeout=10)
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert "could not be recorded" in response.json()["error"]["message"]
    assert "could not be recorded" in streamed.text
    assert "[DONE]" not in streamed.text
    assert (tally.calls, tally.answered) == (2, 0)


def test_routes_need_aliases_of_their_own(gateway_store: Store) -> None:
    engine = TokenEngine(ScriptedSampler(lambda _: "x"), ByteChatFormat(), "scripted")
    with pytest.raises(ConfigError, match="Two routes for the model 'model'"):
        Gateway(gateway_store, [Route("model", engine), Route("model", engine)])
    with pytest.raises(ConfigError, match="needs a route"):
        RouteTable([])


def test_a_star_route_answers_every_other_name(gateway_store: Store) -> None:
    own = TokenEngine(ScriptedSampler(lambda _: "x"), ByteChatFormat(), "own")
    rest = TokenEngine(ScriptedSampler(lambda _: "x"), ByteChatFormat(), "rest")
    with Gateway(gateway_store, [Route("*", rest), Route("model", own, "policy")]) as gateway:
        key = gateway.open_rollout("r", 1).api_key
        for name in ("model", "gpt-4o"):
            fields = body() | {"model": name}
            httpx.post(gateway.base_url + CHAT, json=fields, headers=bearer(key), trust_env=False)
    assert [(call.model, call.endpoint, call.policy) for call in gateway_store.calls("r")] == [
        ("model", "own", "policy"),
        ("gpt-4o", "rest", None),
    ]


def test_id_counts_say_how_many_calls_had_ids(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(lambda _: "x")
    assert gateway.id_counts() == {}
    key = gateway.open_rollout("r", 1).api_key
    for _ in range(3):
        post(gateway.base_url, key)
    counts = gateway.id_counts()["scripted"]
    assert (counts.calls, counts.with_ids) == (3, 3)
