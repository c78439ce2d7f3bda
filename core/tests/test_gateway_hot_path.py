"""What keeps calls fast, and what it must not break: connections to endpoints, streams, and waking the loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from spangrad.gateway import EndpointEngine, Gateway
from spangrad.gateway._endpoint_client import EndpointClient
from spangrad.gateway._landing import Landing
from spangrad.store import Store

MakeGateway = Callable[..., Gateway]
WAIT = 20.0


class Upstream(ThreadingHTTPServer):
    """Streams an answer of two pieces; the second only when it is let go on."""

    daemon_threads = True

    def __init__(self, prompt_ids: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prompt_ids = prompt_ids
        self.go_on = threading.Event()
        self.connections = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}
            data = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._event({"prompt_token_ids": [7] * self.server.prompt_ids, "choices": [_piece("a", 1)]})
        if self.server.go_on.wait(WAIT):
            self._event({"choices": [_piece("b", 2, "stop")]})
            self._chunk(b"data: [DONE]\r\n\r\n")
            self._chunk(b"")

    def _event(self, body: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(body).encode() + b"\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        pass


def _piece(text: str, token: int, finish_reason: str | None = None) -> dict[str, Any]:
    return {
        "index": 0,
        "delta": {"content": text},
        "token_ids": [token],
        "logprobs": {"content": [{"token": text, "logprob": -0.5}]},
        "finish_reason": finish_reason,
    }


@contextmanager
def serving(upstream: Upstream) -> Iterator[Upstream]:
    thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.go_on.set()
        upstream.shutdown()
        thread.join()
        upstream.server_close()


def request(gateway: Gateway, *, stream: bool) -> dict[str, Any]:
    access = gateway.open_rollout("r", 1)
    return {
        "url": f"{access.base_url}/chat/completions",
        "json": {"model": "model", "messages": [{"role": "user", "content": "hi"}], "stream": stream},
        "headers": {"authorization": f"Bearer {access.api_key}"},
    }


def test_a_piece_of_an_endpoints_stream_reaches_the_agent_before_the_next_is_made(make_gateway: MakeGateway) -> None:
    with serving(Upstream()) as upstream, httpx.Client(trust_env=False, timeout=WAIT) as client:
        gateway = make_gateway(EndpointEngine(upstream.base_url))
        with client.stream("POST", **request(gateway, stream=True)) as response:
            lines = (line for line in response.iter_lines() if '"content":' in line and '"content":""' not in line)
            assert '"content":"a"' in next(lines)  # the upstream still waits
            assert not upstream.go_on.is_set()
            upstream.go_on.set()
            assert '"content":"b"' in next(lines)


def test_an_event_may_be_longer_than_any_buffer(make_gateway: MakeGateway, gateway_store: Store) -> None:
    with serving(Upstream(prompt_ids=200_000)) as upstream:  # 600 kB in one line
        upstream.go_on.set()
        gateway = make_gateway(EndpointEngine(upstream.base_url))
        response = httpx.post(**request(gateway, stream=True), trust_env=False, timeout=WAIT)
    assert response.text.endswith("data: [DONE]\n\n")
    (call,) = gateway_store.calls("r")
    assert call.prompt_ids == (7,) * 200_000
    assert call.choices[0].token_ids == (1, 2)


def test_calls_one_after_another_share_a_connection_to_the_endpoint(make_gateway: MakeGateway) -> None:
    with serving(Upstream()) as upstream:
        asked = request(make_gateway(EndpointEngine(upstream.base_url)), stream=False)
        for _ in range(3):
            assert httpx.post(**asked, trust_env=False, timeout=WAIT).status_code == 200
        assert upstream.connections == 1


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://models.example/v1", "http://proxy.example:3128"),
        ("http://inside.example/v1", None),
        ("http://127.0.0.1:8000/v1", None),
        ("http://localhost:8000/v1", None),
        ("https://models.example/v1", None),
    ],
)
def test_an_endpoint_is_asked_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert EndpointClient(url).proxy == proxy


async def test_futures_that_end_before_the_loop_looks_are_brought_by_one_waking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    landing, futures = Landing(), [Future[None]() for _ in range(5)]
    landed = [landing.of(future) for future in futures]
    loop = asyncio.get_running_loop()
    wakings = 0
    original = loop.call_soon_threadsafe

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal wakings
        wakings += 1
        return original(*arguments, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for future in futures[:3]:
        future.set_result(None)
    futures[3].set_exception(ValueError("no"))
    assert wakings == 1
    await asyncio.gather(*landed[:3])
    with pytest.raises(ValueError, match="no"):
        await landed[3]
    futures[4].set_result(None)
    await landed[4]
    assert wakings == 2


async def test_who_stops_waiting_leaves_the_future_alone() -> None:
    landing, future = Landing(), Future[None]()
    landed = landing.of(future)
    landed.cancel()
    future.set_result(None)
    await asyncio.sleep(0)
    assert landed.cancelled()
    assert future.result() is None
