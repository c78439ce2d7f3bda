"""The plug-in `openai` of spangrad: its entry point names this module, which imports neither openai nor an instrumentor."""

from __future__ import annotations

from spangrad.plugins import Register, hookimpl
from spangrad_openai._integration import OpenAIIntegration


@hookimpl
def spangrad_register(register: Register) -> None:
    """Registers the integration `openai`."""
    register.integration("openai", OpenAIIntegration())
