"""All plug-ins of a process, loaded and ready to be asked for by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from spangrad.errors import PluginError
from spangrad.plugins import _discovery
from spangrad.plugins._attachment import Attachment
from spangrad.plugins._own import OWN, pip_line
from spangrad.plugins._registry import Kinds
from spangrad.plugins._report import PluginRow, PluginState
from spangrad.plugins._selection import ONLY, STRICT, Selection

if TYPE_CHECKING:
    from spangrad.backend import BackendFactory, SamplerFactory
    from spangrad.lightningrl import AdvantageEstimatorFactory, CreditAssignerFactory
    from spangrad.plugins._registry import Integration, Kind

_USABLE = frozenset({PluginState.LOADED, PluginState.BLOCKED})


class Plugins:
    """What plug-ins brought, by kind, and the report on each of them. Made by `load_plugins`."""

    def __init__(
        self,
        kinds: Kinds,
        report: tuple[PluginRow, ...],
        *,
        strict: bool = False,
        asked: frozenset[str] = frozenset(),
    ) -> None:
        self._kinds = kinds
        self._strict = strict
        self._asked = asked
        self.report = report
        """One row for each plug-in found, spangrad's own first, then by name."""

    @property
    def backends(self) -> Kind[BackendFactory]:
        """Training backends."""
        return self._kinds.backends

    @property
    def samplers(self) -> Kind[SamplerFactory]:
        """Servers that draw answers beside a backend's learner."""
        return self._kinds.samplers

    @property
    def integrations(self) -> Kind[Integration]:
        """Hooks into agent frameworks and client libraries."""
        return self._kinds.integrations

    @property
    def credit_assigners(self) -> Kind[CreditAssignerFactory]:
        """Factories of credit assigners; they take their options as keyword arguments."""
        return self._kinds.credit_assigners

    @property
    def advantage_estimators(self) -> Kind[AdvantageEstimatorFactory]:
        """Factories of advantage estimators; they take their options as keyword arguments."""
        return self._kinds.advantage_estimators

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks every integration into its framework for the length of the block, once the framework is imported.

        Where that is the case already, it is hooked in at once, and else by the import itself, whichever thread it runs in.
        One whose framework is never imported costs nothing. One that cannot be hooked in is left out with a logged warning:
        nobody asked for it by name.

        Raises:
            PluginError: under SPANGRAD_STRICT=1, one cannot be hooked in. Where its framework is imported during the block,
                this comes out of the import. A module that only has the framework's name (`OtherModuleError`) is an error for a
                plug-in named in SPANGRAD_PLUGINS alone.
        """
        with ExitStack() as stack:
            for row in self.integrations:
                attachment = Attachment(row, strict=self._strict, asked=row.plugin in self._asked)
                stack.callback(attachment.end)
                attachment.begin()
            yield


def load_plugins(
    environ: Mapping[str, str] | None = None,
    *,
    builtin: bool = True,
    quiet: bool = False,
    among: frozenset[str] | None = None,
) -> Plugins:
    """Finds and loads every plug-in, importing only their light registration modules.

    A plug-in that is not usable becomes a row of the report and a logged warning; it raises when somebody asks for it
    by name. Nothing is kept between calls: load once and pass the result on.

    Args:
        environ: where SPANGRAD_PLUGINS, SPANGRAD_DISABLED_PLUGINS and SPANGRAD_STRICT are read; `os.environ` by default.
        builtin: with what comes with spangrad itself, which needs numpy.
        quiet: without warnings, where somebody has given them already.
        among: names of those that the selection comes down to, where another process has found out already.

    Raises:
        PluginError: two plug-ins claim one name, a hook does not exist or has the wrong arguments, a plug-in named in
            SPANGRAD_PLUGINS is not usable, or, under SPANGRAD_STRICT=1, any is not.
        ConfigError: SPANGRAD_STRICT is neither 1 nor 0.
    """
    selection = Selection.read(os.environ if environ is None else environ)
    if among is not None:
        selection = selection.narrowed(among)
    rows: list[PluginRow] = []
    kinds = Kinds(lambda noun, name: _explain_unknown(rows, noun, name))
    loader = _discovery.Loader(kinds, selection, quiet=quiet)
    if builtin:
        loader.load_builtin()
    loader.load(_discovery.find())
    rows.extend(loader.rows)
    _check_selected(rows, selection)
    return Plugins(kinds, tuple(rows), strict=selection.strict, asked=selection.asked)


def _check_selected(rows: list[PluginRow], selection: Selection) -> None:
    """Raises for plug-ins that were asked for by name, or all of them when strict, and are not usable."""
    asked = selection.only or frozenset()
    if missing := sorted(asked - {row.name for row in rows}):
        found = ", ".join(row.name for row in rows if row.name != _discovery.BUILTIN) or "none"
        raise PluginError(
            f"{ONLY} names {missing[0]!r}, but no such plug-in is installed (found: {found})",
            cure=pip_line(missing[0]) or f"Install the distribution that brings it, or correct {ONLY}",
        )
    unusable = [row for row in rows if row.state not in _USABLE and (selection.strict or row.name in asked)]
    if unusable:
        why = f" ({STRICT} is set)" if selection.strict else ""
        raise PluginError(
            "; ".join(f"The plug-in {_described(row)}" for row in unusable) + why,
            cure="; ".join(dict.fromkeys(row.cure for row in unusable)),
        )


def _explain_unknown(rows: list[PluginRow], noun: str, name: str) -> PluginError | None:
    """The error for a name that nothing registered but that a plug-in, here or on the package index, would bring."""
    for row in rows:
        if row.name == name and row.state is not PluginState.LOADED:
            return PluginError(f"The {noun} {_described(row)}", cure=row.cure)
    if name in OWN and OWN[name][0] == noun and all(row.name != name for row in rows):
        return PluginError(f"The {noun} {name!r} is not installed", cure=pip_line(name) or "")
    return None


def _described(row: PluginRow) -> str:
    return f"{row.name!r} of {row.distribution} {row.version} is not usable: {row.state}, {row.reason}"
