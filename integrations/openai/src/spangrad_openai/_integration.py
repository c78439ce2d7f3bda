"""One switch for everything this package hooks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spangrad_openai._hooks import Hooks


class OpenAIIntegration:
    """Gives every request of every openai client in this process the identity of the rollout it belongs to, and each call a span.

    The hooks exist once in a process and count how often they are attached, whichever instance did it. Without a rollout
    scope, and for requests to other hosts than the scope's gateway, a client behaves exactly as if nothing were attached.
    """

    framework = "openai"

    def attach(self) -> Callable[[], None]:
        """Hooks in; returns the function that takes this one attachment back. The last one restores everything.

        Raises:
            PluginError: openai is not installed, or its client does not have the methods that are hooked.
        """
        return _hooks().attach()

    def describe(self) -> Mapping[str, str]:
        """Part -> what is hooked right now: `client`, `spans`, `threads`, and the version of `openai`."""
        return _hooks().describe()


def _hooks() -> Hooks:
    """The process's hooks; imported here because they need openai.

    Openai first, and on its own: a thread that waited for another's import of it in the middle of importing our hooks would
    be in the way of that other thread, which needs them when openai's import attaches.
    """
    import openai  # noqa: F401, PLC0415 - importing this package must not import openai

    from spangrad_openai._hooks import HOOKS  # noqa: PLC0415 - as above

    return HOOKS
