"""A gateway whose model follows a script, for agents of AutoGen to call; nothing may call anybody else."""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from autogen_core.models import ModelInfo
from autogen_core.tools import Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from integrations.conftest import ScriptedStage, indented

from spangrad.testing import tool_call_text
from spangrad_autogen import AutoGenIntegration

MODEL_INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    structured_output=True,
    family="unknown",
    multiple_system_messages=True,
)


tool_call = tool_call_text
"""What the model writes to call a tool."""


def lines(*rows: str) -> str:
    """A tree of spans as `Stage.tree` gives it."""
    return "\n".join(rows)


@dataclass
class Stage(ScriptedStage):
    """The gateway, its script, and what has been recorded."""

    clients: list[OpenAIChatCompletionClient] = field(default_factory=list)

    def client(self, **options: Any) -> OpenAIChatCompletionClient:
        """A model client as a program makes it, that knows of no rollout."""
        settings = {"model": "policy", "base_url": f"{self.gateway.base_url}/v1", "api_key": "mine", **options}
        client = OpenAIChatCompletionClient(model_info=MODEL_INFO, **settings)
        self.clients.append(client)
        return client

    def tree(self, rollout_id: str = "rollout") -> str:
        """The rollout's spans, one a line, each indented below its parent."""
        return lines(*indented(self.kept(rollout_id)))


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
    with Stage.opened(tmp_path) as stage:
        yield stage
        for client in stage.clients:
            await client.close()
