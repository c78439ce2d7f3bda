"""The credit assigner a train.toml names: with the user's functions loaded, and the parts of a sum made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl import CreditAssigner, CreditAssignerFactory, configured
from spangrad.plugins import Plugins
from spangrad.rollouts import load_function
from spangrad.training._config import NamedTable

NOUN = "credit assigner"


def credit_assigner(table: NamedTable, plugins: Plugins, folder: Path) -> CreditAssigner:
    """Makes the assigner with its options.

    A factory says which of its options need reading: `functions` are "module:function", looked up from `folder`; `parts` are
    lists of assigners, each a name or a table with options and perhaps a `weight`.

    Raises:
        ConfigError: an option is wrong, a function cannot be loaded, or a part is none.
        PluginError: no assigner has that name.
    """
    factory = plugins.credit_assigners.get(table.name)
    options = dict(table.options)
    for option in _declared(factory, "functions") & options.keys():
        spec = options[option]
        if not isinstance(spec, str):
            raise ConfigError(
                f"The {NOUN} {table.name!r} has {option} = {spec!r}", cure='Name a function, like "my_credit:assign"'
            )
        options[option] = load_function(spec, folder, noun="credit function", error=ConfigError)
    for option in _declared(factory, "parts") & options.keys():
        options[option] = _parts(table.name, options[option], plugins, folder)
    return configured(NOUN, table.name, factory, options)


def _declared(factory: CreditAssignerFactory, attribute: str) -> frozenset[str]:
    """What the factory says about its options."""
    return frozenset(getattr(factory, attribute, ()))


def _parts(name: str, entries: Any, plugins: Plugins, folder: Path) -> list[tuple[CreditAssigner, float]]:
    """The assigners of a sum with their weights."""
    cure = (
        'List names or tables, like of = ["gigpo", { name = "agent_share", weight = 0.5, shares = { writer = 1.0 } }]'
    )
    if not isinstance(entries, list):
        raise ConfigError(f"The {NOUN} {name!r} has of = {entries!r}", cure=cure)
    parts, wrong = [], []
    for number, entry in enumerate(entries):
        try:
            parts.append(_part(name, entry, plugins, folder, cure))
        except (ConfigError, PluginError) as error:
            wrong.append(f"of.{number}: {error}")
    if wrong:
        raise ConfigError("; ".join(wrong))
    return parts


def _part(name: str, entry: Any, plugins: Plugins, folder: Path, cure: str) -> tuple[CreditAssigner, float]:
    """An assigner of a sum with its weight."""
    given = dict(entry) if isinstance(entry, dict) else entry
    weight = given.pop("weight", 1.0) if isinstance(given, dict) else 1.0
    try:
        part = NamedTable.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"The {NOUN} {name!r} has {entry!r} among its parts", cure=cure) from error
    assigner = credit_assigner(part, plugins, folder)
    plugins.credit_assigners.get(name)(of=[(assigner, weight)])  # which looks at the weight
    return assigner, weight
