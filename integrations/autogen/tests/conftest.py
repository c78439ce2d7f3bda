"""A gateway whose model follows a script, for agents of AutoGen to call; nothing may call anybody else."""

from __future__ import annotations

import ipaddress
import json
import socket
from abc import ABC
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from autogen_core.models import ModelInfo
from autogen_core.tools import Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad.capture import RolloutScope, deliver_spans, end_work, flush_spans, use_scope
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call
from spangrad_autogen import AutoGenIntegration

MODEL_INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    structured_output=True,
    family="unknown",
    multiple_system_messages=True,
)


def tool_call(name: str, **arguments: object) -> str:
    """What the model writes to call a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def lines(*rows: str) -> str:
    """A tree of spans as `Stage.tree` gives it."""
    return "\n".join(rows)


@dataclass
class Stage:
    """The gateway, its script, and what has been recorded."""

    gateway: Gateway
    store: Store
    script: Callable[[ScriptedPrompt], Any] = lambda prompt: f"You said: {prompt.last}"
    spans: list[ReadableSpan] = field(default_factory=list)
    clients: list[OpenAIChatCompletionClient] = field(default_factory=list)

    def client(self, **options: Any) -> OpenAIChatCompletionClient:
        """A model client as a program makes it, that knows of no rollout."""
        settings = {"model": "policy", "base_url": f"{self.gateway.base_url}/v1", "api_key": "mine", **options}
        client = OpenAIChatCompletionClient(model_info=MODEL_INFO, **settings)
        self.clients.append(client)
        return client

    def answers(self, *texts: str) -> None:
        """The model's answers, in the order of its calls."""
        left = list(texts)
        self.script = lambda _prompt: left.pop(0)

    @contextmanager
    def rollout(self, rollout_id: str = "rollout") -> Iterator[RolloutScope]:
        """Runs the block inside a rollout."""
        access = self.gateway.open_rollout(rollout_id, 1)
        scope = RolloutScope(rollout_id, 1, "task", access.base_url, access.api_key, gateway_url=self.gateway.base_url)
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

    def kept(self, rollout_id: str = "rollout") -> list[ReadableSpan]:
        """The rollout's spans, in the order they began."""
        flush_spans()
        own = [span for span in self.spans if (span.attributes or {}).get(semconv.ROLLOUT_ID, rollout_id) == rollout_id]
        return sorted(own, key=lambda span: span.start_time or 0)

    def span(self, name: str, rollout_id: str = "rollout") -> ReadableSpan:
        """The one span of that name."""
        (found,) = [span for span in self.kept(rollout_id) if span.name == name]
        return found

    def tree(self, rollout_id: str = "rollout") -> str:
        """The rollout's spans, one a line, each indented below its parent."""
        spans = self.kept(rollout_id)
        ids = {span.context.span_id for span in spans}
        lines: list[str] = []

        def put(parent: int | None, depth: int) -> None:
            for span in spans:
                above = span.parent.span_id if span.parent is not None else None
                if (above if above in ids else None) == parent:
                    lines.append("  " * depth + span.name)
                    put(span.context.span_id, depth + 1)

        put(None, 0)
        return "\n".join(lines)


class PlainWorkbench(Workbench, ABC):
    """A workbench of a program's own, as one that speaks to a server of tools; it lacks only the tools."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def reset(self) -> None:
        pass

    async def save_state(self) -> dict[str, Any]:
        return {}

    async def load_state(self, state: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whatever tries to reach another machine."""
    connect = socket.socket.connect

    def guarded(own: socket.socket, address: Any) -> None:
        if own.family in {socket.AF_INET, socket.AF_INET6} and not ipaddress.ip_address(address[0]).is_loopback:
            pytest.fail(f"a request for {address[0]} left this machine")
        connect(own, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def attached() -> Iterator[AutoGenIntegration]:
    """The integration, attached for the test."""
    integration = AutoGenIntegration()
    detach = integration.attach()
    try:
        yield integration
    finally:
        detach()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway and a store of the test's own."""
    store = open_store(tmp_path / "spangrad.db")
    sampler = ScriptedSampler(lambda prompt: made.script(prompt))  # noqa: PLW0108 - tests put another script there
    engine = TokenEngine(sampler, ByteChatFormat(), "scripted")
    try:
        with Gateway(store, [Route("policy", engine, policy="policy")]) as gateway:
            made = Stage(gateway, store)
            with deliver_spans(made.spans.extend):
                yield made
                for client in made.clients:
                    await client.close()
    finally:
        store.close()
