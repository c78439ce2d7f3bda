"""The plug-in `openai-agents` of spangrad: its entry point names this module, which imports no framework."""

from __future__ import annotations

from spangrad.plugins import Register, hookimpl
from spangrad_openai_agents._integration import OpenAIAgentsIntegration


@hookimpl
def spangrad_register(register: Register) -> None:
    """Registers the integration `openai-agents`."""
    register.integration("openai-agents", OpenAIAgentsIntegration())
