"""Everything hooked into AutoGen, attached once and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spangrad.capture import add_probe
from spangrad.plugins import SharedHooks
from spangrad_autogen._classes import ClassHooks
from spangrad_autogen._frame import probe
from spangrad_autogen._runtime import RuntimeHooks
from spangrad_autogen._shape import installed
from spangrad_autogen._wrappers import SWITCH


class _Hooks:
    """The hooks in classes and runtime, and the probe."""

    def __init__(self) -> None:
        self._classes = ClassHooks()
        self._runtime = RuntimeHooks()
        self._remove_probe: Callable[[], None] = lambda: None

    def apply(self) -> None:
        """Hooks in; see `ClassHooks` and `RuntimeHooks` for what it raises."""
        SWITCH.on = True
        self._runtime.apply()
        self._classes.apply()
        self._remove_probe = add_probe(probe)

    def revert(self) -> None:
        """Takes everything out."""
        SWITCH.on = False
        self._remove_probe()
        self._classes.revert()
        self._runtime.revert()

    def describe(self) -> Mapping[str, str]:
        """See `AutoGenIntegration.describe`."""
        state = "hooked" if SWITCH.on else "not attached"
        return {"autogen": installed(), "agents": self._classes.problem or state, "runtime": state}


_HOOKS: Final = _Hooks()
HOOKS: Final = SharedHooks(_HOOKS.apply, _HOOKS.revert)
"""The only ones in the process: AutoGen's classes exist once, so their hooks have one owner."""
describe: Final = _HOOKS.describe
