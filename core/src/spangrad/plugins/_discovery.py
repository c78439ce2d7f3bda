"""Finding plug-ins and loading them one at a time, so that a broken one is a row in a report and not the end.

What is wrong with the environment (a framework missing, too old, failing to import) is reported. What leaves open which
of two things would run (names taken twice, hooks nobody will ever call) is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points, version
from types import ModuleType

import pluggy

from spangrad.errors import PluginError
from spangrad.plugins import _builtin, _hookspecs
from spangrad.plugins._own import pip_line
from spangrad.plugins._registry import Kinds, Register
from spangrad.plugins._report import PluginRow, PluginState
from spangrad.plugins._requirements import first_unmet, metadata_field
from spangrad.plugins._selection import DISABLED, Selection

GROUP = "spangrad"
BUILTIN = "builtin"

_log = logging.getLogger("spangrad.plugins")


@dataclass(frozen=True, slots=True)
class Found:
    """An entry point and the distribution it comes from."""

    entry_point: EntryPoint
    distribution: str
    version: str


def find() -> list[Found]:
    """All entry points of the group, sorted by name."""
    found: dict[tuple[str, str], Found] = {}
    for entry_point in entry_points(group=GROUP):
        dist = entry_point.dist
        row = Found(
            entry_point,
            distribution=(dist and metadata_field(dist, "Name")) or "an unknown distribution",
            version=(dist and metadata_field(dist, "Version")) or "unknown",
        )
        found.setdefault((entry_point.name, row.distribution), row)
    return [found[key] for key in sorted(found)]


class Loader:
    """Loads plug-ins into `kinds`, one by one, and keeps the report; `quiet` logs no warnings."""

    def __init__(self, kinds: Kinds, selection: Selection, *, quiet: bool = False) -> None:
        self.kinds = kinds
        self.rows: list[PluginRow] = []
        self._selection = selection
        self._quiet = quiet
        self._manager = pluggy.PluginManager("spangrad")
        self._manager.add_hookspecs(_hookspecs)

    def load_builtin(self) -> None:
        """Registers what comes with spangrad; an exception there is a bug of ours and passes through."""
        row = PluginRow(BUILTIN, "spangrad", version("spangrad"), PluginState.LOADED)
        self._add_hooks(_builtin, row)
        self._register(_builtin, row)

    def load(self, found: Iterable[Found]) -> None:
        """Loads what the selection allows.

        Raises:
            PluginError: two plug-ins of one name, a hook that does not exist or has the wrong arguments.
        """
        owners = {BUILTIN: "spangrad"}
        for item in found:
            name = item.entry_point.name
            if (blocked := self._selection.why_blocked(name)) is not None:
                self._report(item, PluginState.BLOCKED, *blocked)
                continue
            if name in owners:
                raise PluginError(
                    f"Two distributions bring a plug-in named {name!r}: {owners[name]} and {item.distribution}",
                    cure="Uninstall one of them",
                )
            owners[name] = item.distribution
            self._load_one(item)

    def _load_one(self, item: Found) -> None:
        name, dist = item.entry_point.name, item.entry_point.dist
        if dist is not None and (unmet := first_unmet(dist)) is not None:
            self._report(item, unmet.state, unmet.reason, pip_line(name) or f'pip install "{unmet.requirement}"')
            return
        try:
            module = item.entry_point.load()
        except Exception as error:  # noqa: BLE001 - a plug-in's module may raise anything; it must not end the others
            self._failed(item, f"importing {item.entry_point.value} raised {type(error).__name__}: {error}", error)
            return
        row = PluginRow(name, item.distribution, item.version, PluginState.LOADED)
        self._add_hooks(module, row)
        try:
            self._register(module, row)
        except PluginError:
            raise
        except Exception as error:  # noqa: BLE001 - as above, for the plug-in's hook
            self._manager.unregister(module)
            self._failed(item, f"its spangrad_register raised {type(error).__name__}: {error}", error)

    def _add_hooks(self, module: ModuleType | object, row: PluginRow) -> None:
        """Hands the module to pluggy and checks that every hook it marks exists and every argument is known."""
        try:
            self._manager.register(module, row.name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"The plug-in {row.name!r} ({row.distribution} {row.version}) does not fit this spangrad: {_one_line(error)}",
                cure=f"Upgrade or uninstall {row.distribution}, or disable it: {DISABLED}={row.name}",
            ) from error
        if not self._manager.get_hookcallers(module):
            raise PluginError(
                f"The plug-in {row.name!r} ({row.distribution} {row.version}) implements no hook",
                cure="Mark its spangrad_register function with spangrad.plugins.hookimpl",
            )

    def _register(self, module: ModuleType | object, row: PluginRow) -> None:
        """Lets one plug-in register, into kinds of its own first: one that raises half-way leaves nothing behind."""
        others = [plugin for plugin in self._manager.get_plugins() if plugin is not module]
        call = self._manager.subset_hook_caller("spangrad_register", others)
        own = Kinds()
        call(register=Register(own, plugin=row.name, distribution=row.distribution))
        self.kinds.merge(own)
        brings = tuple(f"{kind.noun} {name}" for kind in own.all() for name in kind.names())
        self.rows.append(replace(row, brings=brings))

    def _failed(self, item: Found, reason: str, error: Exception) -> None:
        self._report(item, PluginState.IMPORT_FAILED, reason, f"Reinstall or update {item.distribution}")
        _log.debug("The plug-in %r failed", item.entry_point.name, exc_info=error)

    def _report(self, item: Found, state: PluginState, reason: str, cure: str) -> None:
        row = PluginRow(item.entry_point.name, item.distribution, item.version, state, reason, cure)
        self.rows.append(row)
        if state is not PluginState.BLOCKED and not self._quiet:
            _log.warning(
                "The plug-in %r of %s is left out (%s): %s. %s", row.name, row.distribution, state, reason, cure
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
