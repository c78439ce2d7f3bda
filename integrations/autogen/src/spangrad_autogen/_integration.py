"""One switch for everything this package hooks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spangrad.errors import PluginError
from spangrad_autogen._cure import cure
from spangrad_openai import OpenAIIntegration


class AutoGenIntegration:
    """Records the agents, teams, tools and handoffs of AutoGen, and hooks into the openai client beneath it.

    The hooks exist once in a process and count how often they are attached, whichever instance did it. Outside a rollout
    AutoGen behaves exactly as if nothing were attached.
    """

    framework = "autogen_core"

    def attach(self) -> Callable[[], None]:
        """Hooks in; returns the function that takes this one attachment back. The last one restores everything.

        Raises:
            PluginError: autogen-core or openai is not installed, or does not look as expected.
        """
        try:
            from spangrad_autogen._hooks import HOOKS  # noqa: PLC0415 - importing this package must not import AutoGen
        except ImportError as error:
            raise _cannot_import(error) from error
        detach_client = OpenAIIntegration().attach()
        try:
            detach_hooks = HOOKS.attach()
        except BaseException:  # whatever it is passes on, but half an attachment must not stay
            detach_client()
            raise

        def detach() -> None:
            detach_hooks()
            detach_client()

        return detach

    def describe(self) -> Mapping[str, str]:
        """Part -> what is hooked right now: `agents`, `runtime`, the version of `autogen`, and the parts of the client."""
        try:
            from spangrad_autogen._hooks import describe  # noqa: PLC0415 - as in `attach`
        except ImportError as error:
            return {"autogen": _cannot_import(error).what}
        return {**OpenAIIntegration().describe(), **describe()}


def _cannot_import(error: ImportError) -> PluginError:
    missing = error.name == "autogen_core" and isinstance(error, ModuleNotFoundError)
    what = "autogen-core is not installed" if missing else f"AutoGen cannot be hooked: {error}"
    return PluginError(what, cure=cure())
