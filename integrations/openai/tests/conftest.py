"""A server that keeps what openai clients send, and the integration attached for one test."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from spangrad.capture import RolloutScope, flush_spans
from spangrad_openai import OpenAIIntegration


@dataclass(frozen=True, slots=True)
class Received:
    """One HTTP request as it arrived."""

    path: str
    headers: Headers
    body: Mapping[str, Any]
    status: int
    """What it was answered with."""

    @property
    def said(self) -> str:
        """The last message of the conversation."""
        return str(self.body["messages"][-1]["content"])


@dataclass
class RecordingServer:
    """Answers chat completions with what was said, and keeps every request.

    A conversation whose last message contains "refuse=K" is answered 429 K times before it is answered.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)

    def scope(self, rollout_id: str, attempt: int = 1) -> RolloutScope:
        """The scope of a rollout whose gateway this server is."""
        return RolloutScope(
            rollout_id=rollout_id,
            attempt=attempt,
            task_id="task",
            base_url=f"{self.url}/rollouts/{rollout_id}/attempts/{attempt}/v1",
            api_key=f"sk-spangrad-{rollout_id}",
            gateway_url=self.url,
        )

    def app(self) -> Starlette:
        """The application."""
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        said = str(body["messages"][-1]["content"]) if "messages" in body else ""
        refusals = int(said.split("refuse=")[1].split()[0]) if "refuse=" in said else 0
        refuse = self.refused.get(said, 0) < refusals
        self.refused[said] = self.refused.get(said, 0) + 1
        self.received.append(Received(request.url.path, request.headers, body, status=429 if refuse else 200))
        if refuse:
            return JSONResponse({"error": {"message": "slow down"}}, 429, headers={"retry-after-ms": "1"})
        await asyncio.sleep(0)
        if body.get("stream"):
            return StreamingResponse(_chunks(said), media_type="text/event-stream")
        if "messages" not in body:
            return JSONResponse({"object": "list", "data": []})
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(_envelope("chat.completion", [choice]))


def _envelope(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "policy", "choices": choices, "usage": usage}


async def _chunks(said: str) -> AsyncIterator[str]:
    for word in said.split(" "):
        choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
        yield f"data: {json.dumps(_envelope('chat.completion.chunk', [choice]))}\n\n"
        await asyncio.sleep(0)
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield f"data: {json.dumps(_envelope('chat.completion.chunk', [end]))}\n\n"
    yield "data: [DONE]\n\n"


def _serve() -> Iterator[RecordingServer]:
    recording = RecordingServer()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    recording.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(recording.app(), log_level="warning", lifespan="off", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="recording-server")
    thread.start()
    try:
        yield recording
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(autouse=True)
def no_spans_left() -> Iterator[None]:
    """Lets go of the spans of a test that does not look at them, before the next one listens."""
    yield
    flush_spans()


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """The server a rollout's scope names as its gateway."""
    yield from _serve()


@pytest.fixture
def stranger() -> Iterator[RecordingServer]:
    """A server that is nobody's gateway."""
    yield from _serve()


@pytest.fixture
def attached() -> Iterator[OpenAIIntegration]:
    """The integration, attached for the test."""
    integration = OpenAIIntegration()
    detach = integration.attach()
    try:
        yield integration
    finally:
        detach()
