"""The plug-in `autogen` of spangrad: its entry point names this module, which imports no framework."""

from __future__ import annotations

from spangrad.plugins import Register, hookimpl
from spangrad_autogen._integration import AutoGenIntegration


@hookimpl
def spangrad_register(register: Register) -> None:
    """Registers the integration `autogen`."""
    register.integration("autogen", AutoGenIntegration())
