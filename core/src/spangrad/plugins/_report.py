"""What became of each plug-in that was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PluginState(StrEnum):
    """Where a plug-in stands after loading."""

    LOADED = "loaded"
    BLOCKED = "blocked"
    """Left out by SPANGRAD_PLUGINS or SPANGRAD_DISABLED_PLUGINS."""
    NOT_INSTALLED = "not installed"
    """Something it requires is not installed."""
    WRONG_VERSION = "wrong version"
    """Something it requires is installed in a version outside its range."""
    IMPORT_FAILED = "import failed"
    """Its module raised when imported or when asked to register."""


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One plug-in in the report."""

    name: str
    """Name of the entry point."""
    distribution: str
    version: str
    state: PluginState
    reason: str = ""
    """Why it is not loaded; empty when it is."""
    cure: str = ""
    """What the user can do about it: usually a pip line."""
    brings: tuple[str, ...] = ()
    """What it registered, such as "backend torch"."""
