"""What each part of an algorithm needs, and which options it takes."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spangrad.plugins import Plugins

Part = dict[str, list[str]]
"""Its "needs", the "options" it can be given and those that are "required"."""

_OF_A_RATIO: Final = "updates_per_step of 2 or more, or rollouts of another sampler, to differ from reinforce"
_OF_A_CORRECTION: Final = "rollouts of a sampler that computes otherwise or has other weights"


def algorithm_matrix(plugins: Plugins) -> dict[str, dict[str, Part]]:
    """Kind -> name -> what it needs and takes, for all registered credit assigners and estimators and all parts of a loss.

    Args:
        plugins: what is installed.
    """
    from spangrad.backend import CORRECTIONS, LOSSES, KlForm, KlTerm
    from spangrad.lightningrl import needs_of, requirements_table

    estimators = {row.name: row.value for row in plugins.advantage_estimators}
    needs = requirements_table(estimators)
    return {
        "credit assigners": {
            row.name: _part(row.value, needs_of(row.value).in_words()) for row in plugins.credit_assigners
        },
        "advantage estimators": {name: _part(factory, needs[name]) for name, factory in estimators.items()},
        "losses": {
            name: _part(loss, [_OF_A_RATIO] if getattr(loss, "uses_ratio", False) else [])
            for name, loss in sorted(LOSSES.items())
        },
        "KL terms": {form: _part(partial(KlTerm, form), []) for form in get_args(KlForm)},
        "corrections": {
            name: _part(correction, [_OF_A_CORRECTION]) for name, correction in sorted(CORRECTIONS.items())
        },
    }


def _part(factory: object, needs: Sequence[str]) -> Part:
    parameters = inspect.signature(factory).parameters.values() if callable(factory) else ()
    return {
        "needs": list(needs),
        "options": [p.name for p in parameters if p.default is not p.empty],
        "required": [p.name for p in parameters if p.default is p.empty],
    }
