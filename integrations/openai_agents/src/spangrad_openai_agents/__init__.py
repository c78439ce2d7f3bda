"""Hooks spangrad into the OpenAI Agents SDK. Importing this imports no framework; attaching, or using the rest, does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from spangrad_openai_agents._integration import OpenAIAgentsIntegration
from spangrad_openai_agents._shape import check

if TYPE_CHECKING:
    from spangrad_openai_agents._processor import SpangradTracingProcessor
    from spangrad_openai_agents._run_config import run_config

__all__ = ["OpenAIAgentsIntegration", "SpangradTracingProcessor", "run_config"]

_HOMES: Final = {
    "SpangradTracingProcessor": "spangrad_openai_agents._processor",
    "run_config": "spangrad_openai_agents._run_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check()
    return getattr(importlib.import_module(_HOMES[name]), name)
