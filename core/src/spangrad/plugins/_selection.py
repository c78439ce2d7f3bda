"""Which plug-ins the environment asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spangrad.errors import ConfigError

ONLY = "SPANGRAD_PLUGINS"
DISABLED = "SPANGRAD_DISABLED_PLUGINS"
STRICT = "SPANGRAD_STRICT"

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Selection:
    """What to load and what to make of a plug-in that is not usable."""

    only: frozenset[str] | None
    """Load these and no other; None loads all that are found."""
    disabled: frozenset[str]
    strict: bool
    """Any plug-in that is found but not usable is an error."""
    asked: frozenset[str] = frozenset()
    """The user wants these by name."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Selection:
        """Reads SPANGRAD_PLUGINS and SPANGRAD_DISABLED_PLUGINS (names with commas between) and SPANGRAD_STRICT (1 or 0).

        Raises:
            ConfigError: SPANGRAD_STRICT is neither yes nor no.
        """
        strict = environ.get(STRICT, "").strip().lower()
        if strict not in _YES | _NO:
            raise ConfigError(f"{STRICT} is {strict!r}", cure=f"Set {STRICT} to 1 or 0")
        only = _names(environ[ONLY]) if ONLY in environ else None
        return cls(only, _names(environ.get(DISABLED, "")), strict=strict in _YES, asked=only or frozenset())

    def narrowed(self, names: frozenset[str]) -> Selection:
        """The same with these alone, which a process that knows the selection has made out; that asks for none of them."""
        return replace(self, only=names)

    def why_blocked(self, name: str) -> tuple[str, str] | None:
        """Reason and cure for leaving the plug-in out; None when it may load."""
        if name in self.disabled:
            return f"named in {DISABLED}", f"Remove it from {DISABLED}"
        if self.only is not None and name not in self.only:
            return f"not named in {ONLY}", f"Add it to {ONLY}, or unset {ONLY} to load every plug-in"
        return None


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))
