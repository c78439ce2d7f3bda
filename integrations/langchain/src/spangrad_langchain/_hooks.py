"""The handler given to all of LangChain, attached once and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from langchain_core.tracers import context

from spangrad.plugins import SharedHooks
from spangrad_langchain._handler import RunEvents
from spangrad_langchain._probe import PROBE
from spangrad_langchain._shape import installed


class _Hooks:
    """Our entry in the list of handlers that LangChain adds to every run by itself."""

    def __init__(self) -> None:
        self._handler: ContextVar[RunEvents | None] | None = None
        self._release_probe: Callable[[], None] = lambda: None

    def apply(self) -> None:
        """Adds the entry, whose variable has the handler in every context."""
        handler = RunEvents()
        self._handler = ContextVar("spangrad_langchain_handler", default=handler)
        self._release_probe = PROBE.attach()
        # With the class named, a run that the program has given one of our handlers to gets no second.
        context.register_configure_hook(self._handler, inheritable=True, handle_class=RunEvents)

    def revert(self) -> None:
        """Takes it out again. LangChain has no function for that; its own code reads the list anew for each run."""
        self._release_probe()
        ours, self._handler = self._handler, None
        hooks = context._configure_hooks  # noqa: SLF001 - `_shape` has checked it
        for hook in list(hooks):
            if ours is not None and hook[0] is ours:
                hooks.remove(hook)

    def describe(self) -> Mapping[str, str]:
        """See `LangChainIntegration.describe`."""
        return {
            "langchain-core": installed(),
            "langgraph": _version("langgraph"),
            "callbacks": "hooked" if self._handler is not None else "not attached",
        }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


_HOOKS: Final = _Hooks()
HOOKS: Final = SharedHooks(_HOOKS.apply, _HOOKS.revert)
"""The only ones in the process: LangChain's list exists once, so our entry in it has one owner."""
describe: Final = _HOOKS.describe
