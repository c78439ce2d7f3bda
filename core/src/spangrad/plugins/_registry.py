"""What plug-ins have registered, by kind and name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from spangrad.errors import PluginError

if TYPE_CHECKING:
    from spangrad.backend import BackendFactory, SamplerFactory
    from spangrad.lightningrl import AdvantageEstimatorFactory, CreditAssignerFactory

T = TypeVar("T")


class Integration(Protocol):
    """Hooks spangrad into one framework or client library."""

    framework: str
    """Import name of the library it hooks into."""

    def attach(self) -> Callable[[], None]:
        """Hooks in for the whole process; returns the function that takes this one attachment back.

        Attaching twice is harmless: the hooks stay until the last detach, which restores everything exactly. Calling
        the same detach twice does nothing the second time.

        Raises:
            PluginError: the framework is missing or does not look as expected.
        """
        ...

    def describe(self) -> Mapping[str, str]:
        """What is hooked right now and what could not be, in words, by part."""
        ...


@dataclass(frozen=True, slots=True)
class Registered(Generic[T]):
    """One thing under its name, and who brought it."""

    name: str
    value: T
    distribution: str
    plugin: str
    """Name of the plug-in, as in SPANGRAD_DISABLED_PLUGINS."""


class Kind(Generic[T]):
    """All registered things of one kind.

    Args:
        noun: what one of them is called in messages, such as "backend".
        explain_unknown: (noun, name) -> the error for a name that is not registered, where more can be said than what
            the known names are.
    """

    def __init__(self, noun: str, explain_unknown: Callable[[str, str], PluginError | None] | None = None) -> None:
        self.noun = noun
        self._explain_unknown = explain_unknown
        self._rows: dict[str, Registered[T]] = {}

    def add(self, row: Registered[T]) -> None:
        """Adds under a new name.

        Raises:
            PluginError: the name is taken or is no name.
        """
        if not row.name or row.name != row.name.strip():
            raise PluginError(
                f"The plug-in {row.plugin!r} ({row.distribution}) registers a {self.noun} under the name {row.name!r}",
                cure="A name is a non-empty text without spaces around it; tell the plug-in's authors",
            )
        if (taken := self._rows.get(row.name)) is not None:
            raise PluginError(
                f"Two plug-ins register the {self.noun} {row.name!r}: {taken.plugin!r} ({taken.distribution}) "
                f"and {row.plugin!r} ({row.distribution})",
                cure=f"Uninstall one of them, or disable it: SPANGRAD_DISABLED_PLUGINS={row.plugin}",
            )
        self._rows[row.name] = row

    def get(self, name: str) -> T:
        """The thing of that name.

        Raises:
            PluginError: there is none; the message says how to install a known missing one, why an installed one is not
                usable, or lists the known names.
        """
        return self.row(name).value

    def row(self, name: str) -> Registered[T]:
        """Like `get`, with the name of the distribution that brought it."""
        if (row := self._rows.get(name)) is not None:
            return row
        if self._explain_unknown is not None and (error := self._explain_unknown(self.noun, name)) is not None:
            raise error
        close = difflib.get_close_matches(name, self._rows, n=1)
        known = ", ".join(self.names()) or "none"
        raise PluginError(
            f"Unknown {self.noun} {name!r} (known: {known})",
            cure=f"Did you mean {close[0]!r}?" if close else "`spangrad plugins` lists what is installed",
        )

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._rows))

    def __iter__(self) -> Iterator[Registered[T]]:
        return iter(sorted(self._rows.values(), key=lambda row: row.name))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows


class Kinds:
    """One `Kind` for each sort of thing a plug-in can bring.

    Args:
        explain_unknown: see `Kind`.
    """

    def __init__(self, explain_unknown: Callable[[str, str], PluginError | None] | None = None) -> None:
        self.backends: Kind[BackendFactory] = Kind("backend", explain_unknown)
        self.samplers: Kind[SamplerFactory] = Kind("sampler", explain_unknown)
        self.integrations: Kind[Integration] = Kind("integration", explain_unknown)
        self.credit_assigners: Kind[CreditAssignerFactory] = Kind("credit assigner", explain_unknown)
        self.advantage_estimators: Kind[AdvantageEstimatorFactory] = Kind("advantage estimator", explain_unknown)

    def all(self) -> tuple[Kind[Any], ...]:
        """Every kind."""
        return (self.backends, self.samplers, self.integrations, self.credit_assigners, self.advantage_estimators)

    def merge(self, other: Kinds) -> None:
        """Adds all that `other` holds.

        Raises:
            PluginError: a name is taken.
        """
        for mine, theirs in zip(self.all(), other.all(), strict=True):
            for row in theirs:
                mine.add(row)


class Register:
    """Handed to a plug-in's `spangrad_register` hook: one method for each kind of thing it can bring.

    Names are what users write in train.toml. A name that is taken is refused, so nobody trains with another thing than
    the one they meant.
    """

    def __init__(self, kinds: Kinds, *, plugin: str, distribution: str) -> None:
        self._kinds = kinds
        self._plugin = plugin
        self._distribution = distribution

    def backend(self, name: str, factory: BackendFactory) -> None:
        """A training backend, for `[backend] name = ...`; making the factory must not import its framework."""
        self._kinds.backends.add(self._row(name, factory))

    def sampler(self, name: str, factory: SamplerFactory) -> None:
        """Servers to draw answers beside a backend's learner, for the backend's setting `sampler`."""
        self._kinds.samplers.add(self._row(name, factory))

    def integration(self, name: str, integration: Integration) -> None:
        """Hooks for an agent framework or client library; the framework is imported by `attach`, not before."""
        self._kinds.integrations.add(self._row(name, integration))

    def credit_assigner(self, name: str, factory: CreditAssignerFactory) -> None:
        """A credit assigner; the factory takes its options as keyword arguments."""
        self._kinds.credit_assigners.add(self._row(name, factory))

    def advantage_estimator(self, name: str, factory: AdvantageEstimatorFactory) -> None:
        """An advantage estimator; the factory takes its options as keyword arguments."""
        self._kinds.advantage_estimators.add(self._row(name, factory))

    def _row(self, name: str, value: T) -> Registered[T]:
        return Registered(name, value, self._distribution, self._plugin)
