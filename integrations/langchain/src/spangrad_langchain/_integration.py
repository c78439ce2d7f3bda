"""One switch for everything this package hooks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from spangrad.errors import PluginError
from spangrad_langchain._shape import check
from spangrad_openai import OpenAIIntegration


class LangChainIntegration:
    """Records the agents, nodes, tools and handoffs of LangChain and LangGraph, and hooks into the openai client beneath them.

    The hooks exist once in a process and count how often they are attached, whichever instance did it. Outside a rollout
    nothing is recorded.
    """

    framework = "langchain_core"

    def attach(self) -> Callable[[], None]:
        """Hooks in; returns the function that takes this one attachment back. The last one restores everything.

        Raises:
            PluginError: LangChain or openai is not installed, or does not look as expected.
        """
        check()
        from spangrad_langchain._hooks import HOOKS  # noqa: PLC0415 - importing this package must not import LangChain

        with ExitStack() as stack:
            stack.callback(OpenAIIntegration().attach())
            stack.callback(HOOKS.attach())
            return stack.pop_all().close

    def describe(self) -> Mapping[str, str]:
        """Part -> what is hooked right now: `callbacks`, the versions of `langchain-core` and `langgraph`, and the client's parts."""
        try:
            check()
        except PluginError as error:
            return {"langchain-core": error.what}
        from spangrad_langchain._hooks import describe  # noqa: PLC0415 - as in `attach`

        return {**OpenAIIntegration().describe(), **describe()}
