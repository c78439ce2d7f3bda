"""The plug-in `langchain` of spangrad: its entry point names this module, which imports no framework."""

from __future__ import annotations

from spangrad.plugins import Register, hookimpl
from spangrad_langchain._integration import LangChainIntegration


@hookimpl
def spangrad_register(register: Register) -> None:
    """Registers the integration `langchain`."""
    register.integration("langchain", LangChainIntegration())
