"""A gateway whose model follows a script, for agents of LangChain to call; nothing may call anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from integrations.conftest import ScriptedStage, indented
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models import _client_utils
from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad.testing import tool_call_text
from spangrad_langchain import LangChainIntegration

tool_call = tool_call_text
"""What the model writes to call a tool."""


class Stage(ScriptedStage):
    """The gateway, its script, and what has been recorded."""

    def model(self, **options: Any) -> ChatOpenAI:
        """A model as a program makes it, that knows of no rollout."""
        return ChatOpenAI(**{"model": "policy", "base_url": f"{self.gateway.base_url}/v1", **options})

    def tree(self, rollout_id: str = "rollout") -> list[str]:
        """The rollout's pieces of work, one a line, each indented below its parent, in the order they began; calls with their agent."""
        agents = {call.call_id: call.agent for call in self.calls(rollout_id)}

        def line(span: ReadableSpan) -> str:
            call_id = (span.attributes or {}).get(semconv.CALL_ID)
            return span.name if call_id is None else f"call {agents[str(call_id)]}"

        return indented(self.kept(rollout_id), line)


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
    with Stage.opened(tmp_path) as stage:
        stage.in_environment(monkeypatch)
        yield stage
