"""One switch for everything this package hooks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from spangrad.errors import PluginError
from spangrad_openai import OpenAIIntegration
from spangrad_openai_agents._shape import check


class OpenAIAgentsIntegration:
    """Records the agents, tools, handoffs and guardrails of the OpenAI Agents SDK, and hooks into the openai client beneath it.

    The hooks exist once in a process and count how often they are attached, whichever instance did it. Outside a rollout the
    SDK behaves exactly as if nothing were attached. Inside one, its default export of traces to OpenAI is held back.

    Args:
        keep_vendor_export: leave that export as it is.
    """

    framework = "agents"

    def __init__(self, *, keep_vendor_export: bool = False) -> None:
        self._keep_vendor_export = keep_vendor_export

    def attach(self) -> Callable[[], None]:
        """Hooks in; returns the function that takes this one attachment back. The last one restores everything.

        Raises:
            PluginError: the SDK or openai is not installed, or does not look as expected.
        """
        check()
        from spangrad_openai_agents._hooks import HOOKS  # noqa: PLC0415 - importing this package must not import the SDK
        from spangrad_openai_agents._vendor_export import VENDOR_EXPORT  # noqa: PLC0415 - as above

        with ExitStack() as stack:
            stack.callback(OpenAIIntegration().attach())
            stack.callback(HOOKS.attach())
            if self._keep_vendor_export:
                VENDOR_EXPORT.keep()
                stack.callback(VENDOR_EXPORT.let_go)
            return stack.pop_all().close

    def describe(self) -> Mapping[str, str]:
        """Part -> what is hooked right now: `agents`, `export to the vendor`, the version of `openai-agents`, and the client's parts."""
        try:
            check()
        except PluginError as error:
            return {"openai-agents": error.what}
        from spangrad_openai_agents._hooks import describe  # noqa: PLC0415 - as in `attach`

        return {**OpenAIIntegration().describe(), **describe()}
