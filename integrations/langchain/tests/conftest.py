"""A gateway whose model follows a script, for agents of LangChain to call; nothing may call anybody else."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models import _client_utils
from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad.capture import RolloutScope, deliver_spans, end_work, flush_spans, use_scope
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, RewardRecord, RolloutRecord, RolloutStatus, extract
from spangrad_langchain import LangChainIntegration


def tool_call(name: str, **arguments: object) -> str:
    """What the model writes to call a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass
class Stage:
    """The gateway, its script, and what has been recorded."""

    gateway: Gateway
    store: Store
    script: Callable[[ScriptedPrompt], Any] = lambda prompt: f"You said: {prompt.last}"
    spans: list[ReadableSpan] = field(default_factory=list)

    def model(self, **options: Any) -> ChatOpenAI:
        """A model as a program makes it, that knows of no rollout."""
        return ChatOpenAI(**{"model": "policy", "base_url": f"{self.gateway.base_url}/v1", **options})

    def answers(self, *texts: str) -> None:
        """The model's answers, in the order of its calls."""
        left = list(texts)
        self.script = lambda _prompt: left.pop(0)

    def open(self, rollout_id: str) -> RolloutScope:
        """A rollout at the gateway."""
        access = self.gateway.open_rollout(rollout_id, 1)
        url = self.gateway.base_url
        return RolloutScope(rollout_id, 1, "task", access.base_url, access.api_key, gateway_url=url)

    @contextmanager
    def rollout(self, rollout_id: str = "rollout") -> Iterator[RolloutScope]:
        """Runs the block inside a rollout."""
        scope = self.open(rollout_id)
        try:
            with use_scope(scope):
                yield scope
        finally:
            end_work(scope)

    def calls(self, rollout_id: str = "rollout") -> list[Call]:
        """The rollout's calls, in the order they were received."""
        return list(self.store.calls(rollout_id))

    def agents(self, rollout_id: str = "rollout") -> list[str | None]:
        """The agent of each call."""
        return [call.agent for call in self.calls(rollout_id)]

    def trained(self, rollout_id: str = "rollout") -> list[str | None]:
        """The agent of each of the rollout's transitions, in order."""
        record = RolloutRecord(
            rollout_id, 1, "task", "group", "train", 1, RolloutStatus.SUCCEEDED, "", "", started_at=0, finished_at=1
        )
        reward = RewardRecord(rollout_id, 1, None, "reward", 1.0, "scope", at=1)
        return [transition.agent for transition in extract(record, self.calls(rollout_id), [reward]).transitions]

    def kept(self, rollout_id: str = "rollout") -> list[ReadableSpan]:
        """The rollout's spans, in the order they began."""
        flush_spans()
        own = [span for span in self.spans if (span.attributes or {}).get(semconv.ROLLOUT_ID) == rollout_id]
        return sorted(own, key=lambda span: span.start_time or 0)

    def span(self, name: str, rollout_id: str = "rollout") -> ReadableSpan:
        """The one span of that name."""
        (found,) = [span for span in self.kept(rollout_id) if span.name == name]
        return found

    def said(self, name: str, rollout_id: str = "rollout") -> dict[str, Any]:
        """The attributes of the one span of that name."""
        return dict(self.span(name, rollout_id).attributes or {})

    def tree(self, rollout_id: str = "rollout") -> list[str]:
        """The rollout's pieces of work, one a line, each indented below its parent, in the order they began; calls with their agent."""
        spans = self.kept(rollout_id)
        ids = {span.context.span_id for span in spans}
        agents = {call.call_id: call.agent for call in self.calls(rollout_id)}
        lines: list[str] = []

        def put(parent: int | None, depth: int) -> None:
            for span in spans:
                above = span.parent.span_id if span.parent is not None else None
                if (above if above in ids else None) == parent:
                    call_id = (span.attributes or {}).get(semconv.CALL_ID)
                    line = span.name if call_id is None else f"call {agents[str(call_id)]}"
                    lines.append("  " * depth + line)
                    put(span.context.span_id, depth + 1)

        put(None, 0)
        return lines


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test from which anything, in whatever thread, tried to reach another machine."""
    left: list[str] = []
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(own: socket.socket, address: Any) -> None:
        if own.family in {socket.AF_INET, socket.AF_INET6} and not ipaddress.ip_address(address[0]).is_loopback:
            left.append(str(address[0]))
            raise ConnectionRefusedError(address)
        connect(own, address)

    def guarded_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in {None, "127.0.0.1", "localhost", "::1", b"127.0.0.1"}:
            left.append(str(host))
            raise socket.gaierror(socket.EAI_NONAME, "tests stay on this machine")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)
    yield
    assert left == []


@pytest.fixture(autouse=True)
def own_http_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test HTTP clients of its own.

    LangChain keeps one for each address; a later test may get the same port, on another event loop.
    """
    build = _client_utils._cached_async_httpx_client.__wrapped__
    _HTTP_CLIENTS.append(lru_cache(maxsize=None)(build))
    monkeypatch.setattr(_client_utils, "_cached_async_httpx_client", _HTTP_CLIENTS[-1])


_HTTP_CLIENTS: Final[list[Any]] = []
"""Kept as long as the process lives, as LangChain does: collected earlier, they would close themselves on some other test's loop."""


@pytest.fixture
def attached() -> Iterator[LangChainIntegration]:
    """The integration, attached for the test."""
    integration = LangChainIntegration()
    detach = integration.attach()
    try:
        yield integration
    finally:
        detach()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A gateway and a store of the test's own, and the environment a program finds there."""
    store = open_store(tmp_path / "spangrad.db")
    sampler = ScriptedSampler(lambda prompt: made.script(prompt))  # noqa: PLW0108 - tests put another script there
    engine = TokenEngine(sampler, ByteChatFormat(), "scripted")
    try:
        with Gateway(store, [Route("*", engine, policy="policy")]) as gateway:
            made = Stage(gateway, store)
            monkeypatch.setenv("OPENAI_BASE_URL", f"{gateway.base_url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "mine")
            with deliver_spans(made.spans.extend):
                yield made
    finally:
        store.close()
