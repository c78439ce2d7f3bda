"""A gateway whose model follows a script, for agents of the Agents SDK to call; nothing may call anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from agents import set_default_openai_api, set_trace_processors
from agents.models import openai_provider
from integrations.conftest import ScriptedStage, indented
from opentelemetry.sdk.trace import ReadableSpan

from spangrad.testing import tool_call_text
from spangrad_openai_agents import OpenAIAgentsIntegration

T = TypeVar("T")

tool_call = tool_call_text
"""What the model writes to call a tool."""


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Calls a function in a thread, and closes the event loop that `Runner.run_sync` leaves open there."""

    def whole() -> T:
        try:
            return function(*args)
        finally:
            policy = asyncio.get_event_loop_policy()
            policy.get_event_loop().close()
            policy.set_event_loop(None)

    return await asyncio.to_thread(whole)


class Stage(ScriptedStage):
    """The gateway, its script, and what has been recorded."""

    def tree(self, rollout_id: str = "rollout") -> list[str]:
        """The rollout's pieces of work, one a line, each indented below its parent, in the order they began."""
        return indented([span for span in self.kept(rollout_id) if not _is_call(span)])

    def callers(self, rollout_id: str = "rollout") -> list[str]:
        """For the span of each model call, the name of the span it lies below, in the order the calls began."""
        spans = self.kept(rollout_id)
        names = {span.context.span_id: span.name for span in spans}
        return [names[span.parent.span_id] if span.parent else "" for span in spans if _is_call(span)]


def _is_call(span: ReadableSpan) -> bool:
    return span.name.startswith("openai.")


@pytest.fixture(autouse=True)
def no_processors() -> Iterator[None]:
    """The program's own tracing goes nowhere; tests of the export to the vendor say where."""
    set_trace_processors([])
    yield
    set_trace_processors([])


@contextmanager
def hooked_in(integration: OpenAIAgentsIntegration | None = None) -> Iterator[None]:
    """Attaches the integration for a block."""
    detach = (integration or OpenAIAgentsIntegration()).attach()
    try:
        yield
    finally:
        detach()


@pytest.fixture
def attached() -> Iterator[None]:
    """The integration is attached for the test."""
    with hooked_in():
        yield


@pytest.fixture(params=["chat_completions", "responses"])
def api(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of OpenAI's two interfaces the SDK uses."""
    set_default_openai_api(request.param)
    yield request.param
    set_default_openai_api("responses")


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A gateway and a store of the test's own, and the environment a program finds there."""
    # The SDK shares one HTTP client for the whole process; each test has an event loop of its own.
    monkeypatch.setattr(openai_provider, "_http_client", None)
    with Stage.opened(tmp_path) as stage:
        stage.in_environment(monkeypatch)
        yield stage
        if (client := openai_provider._http_client) is not None:
            await client.aclose()
