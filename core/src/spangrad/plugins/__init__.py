"""The registry of extensions: what can be plugged in, finding it, and asking for it by name.

    plugins = load_plugins()
    factory = plugins.backends.get("torch")

A plug-in is a module named by an entry point of the group `spangrad`; `_hookspecs` says what it must hold.
"""

from spangrad.plugins._hookspecs import hookimpl, hookspec
from spangrad.plugins._import_watch import on_import
from spangrad.plugins._plugins import Plugins, load_plugins
from spangrad.plugins._registry import Integration, Kind, Kinds, Register, Registered
from spangrad.plugins._replacement import Replacements
from spangrad.plugins._report import PluginRow, PluginState
from spangrad.plugins._shared_hooks import SharedHooks

__all__ = [
    "Integration",
    "Kind",
    "Kinds",
    "PluginRow",
    "PluginState",
    "Plugins",
    "Register",
    "Registered",
    "Replacements",
    "SharedHooks",
    "hookimpl",
    "hookspec",
    "load_plugins",
    "on_import",
]
