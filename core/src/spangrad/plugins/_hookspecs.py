"""Every hook a plug-in can implement. This file is the whole contract.

A plug-in is a module (or object) named by an entry point of the group `spangrad`; it marks functions with
`spangrad.plugins.hookimpl`. Its module must import no framework and no torch: it registers names and factories, and the
import happens when a factory is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from spangrad.plugins._registry import Register

hookspec = pluggy.HookspecMarker("spangrad")
hookimpl = pluggy.HookimplMarker("spangrad")


@hookspec
def spangrad_register(register: Register) -> None:
    """Called once after loading: hand each thing the plug-in brings to `register`, under its name."""
