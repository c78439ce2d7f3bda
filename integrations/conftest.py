"""A gateway whose model follows a script, for agents of a framework to call; nothing may call anybody else."""  # noqa: INP001 - an __init__.py here would shadow the real libraries

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad.capture import RolloutScope, deliver_spans, end_work, flush_spans, use_scope
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, RewardRecord, RolloutRecord, RolloutStatus, extract


@dataclass
class ScriptedStage:
    """The gateway, its script, and what has been recorded; each integration's tests derive a `Stage` of their own."""

    gateway: Gateway
    store: Store
    script: Callable[[ScriptedPrompt], Any] = lambda prompt: f"You said: {prompt.last}"
    spans: list[ReadableSpan] = field(default_factory=list)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Self]:
        """One with a gateway and a store of its own, which serves every model's name."""
        store = open_store(folder / "spangrad.db")
        sampler = ScriptedSampler(lambda prompt: made.script(prompt))  # noqa: PLW0108 - tests put another script there
        engine = TokenEngine(sampler, ByteChatFormat(), "scripted")
        try:
            with Gateway(store, [Route("*", engine, policy="policy")]) as gateway:
                made = cls(gateway, store)
                with deliver_spans(made.spans.extend):
                    yield made
        finally:
            store.close()

    def in_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lets a program find the gateway as it finds OpenAI."""
        monkeypatch.setenv("OPENAI_BASE_URL", f"{self.gateway.base_url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "mine")

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


def indented(spans: list[ReadableSpan], line: Callable[[ReadableSpan], str] = lambda span: span.name) -> list[str]:
    """A line for each span, in their order, indented below its parent's."""
    ids = {span.context.span_id for span in spans}
    lines: list[str] = []

    def put(parent: int | None, depth: int) -> None:
        for span in spans:
            above = span.parent.span_id if span.parent is not None else None
            if (above if above in ids else None) == parent:
                lines.append("  " * depth + line(span))
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
    if left:
        pytest.fail(f"Something tried to reach other machines: {left}")
