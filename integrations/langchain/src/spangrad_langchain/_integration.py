"""One switch for everything this package hooks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spangrad_openai import OpenAIIntegration


class LangChainIntegration:
    """Hooks into LangChain and LangGraph, and into the openai client beneath it."""

    framework = "langchain_core"

    def attach(self) -> Callable[[], None]:
        """See `spangrad.plugins.Integration`."""
        return OpenAIIntegration().attach()

    def describe(self) -> Mapping[str, str]:
        """Part -> what is hooked right now."""
        return OpenAIIntegration().describe()
