"""What each part of an algorithm needs, and which options it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spangrad.plugins import Plugins

Part = dict[str, list[str]]
"""Its "needs" and its "options"."""


def algorithm_matrix(plugins: Plugins) -> dict[str, dict[str, Part]]:
    """Kind -> name -> what it needs and takes, for all registered credit assigners and estimators and all losses.

    Args:
        plugins: what is installed.
    """
    from spangrad.backend import LOSSES
    from spangrad.lightningrl import needs_of, requirements_table

    estimators = {row.name: row.value for row in plugins.advantage_estimators}
    needs = requirements_table(estimators)
    return {
        "credit assigners": {
            row.name: {"needs": list(needs_of(row.value).in_words()), "options": _options(row.value)}
            for row in plugins.credit_assigners
        },
        "advantage estimators": {
            name: {"needs": list(needs[name]), "options": _options(factory)} for name, factory in estimators.items()
        },
        "losses": {name: {"needs": [], "options": _options(loss)} for name, loss in sorted(LOSSES.items())},
    }


def _options(factory: object) -> list[str]:
    """The keyword arguments a factory takes."""
    return list(inspect.signature(factory).parameters) if callable(factory) else []
