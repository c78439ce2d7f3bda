"""Credit by a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.transitions import FloatArray, Transition, TransitionBatch

CreditFunction = Callable[[tuple[Transition, ...]], Iterable[float]]
"""Gets the transitions of one rollout, in order of `index`; gives the return of each."""


@dataclass(frozen=True, slots=True)
class Function:
    """What the user's function gives for a rollout's transitions, compared among the rollouts of the task."""

    call: CreditFunction
    """In a configuration "module:function"; whoever reads the configuration loads it."""
    functions: ClassVar[frozenset[str]] = frozenset({"call"})
    """Options that a configuration gives as "module:function"."""

    def __post_init__(self) -> None:
        given: object = self.call  # what a configuration may hold
        if not callable(given) or inspect.iscoroutinefunction(inspect.unwrap(given)):
            raise ConfigError(
                f"The credit function is {self.call!r}", cure='Name a plain function, like call = "my_credit:assign"'
            )

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """One return per transition.

        Raises:
            PluginError: the function failed, or did not give one finite number for each transition; it is named.
        """
        returns = np.zeros(len(batch), dtype=np.float64)
        for rollout, (rollout_id, _) in enumerate(batch.rollout_keys):
            members = np.flatnonzero(batch.rollout_index == rollout)
            ordered = sorted(members.tolist(), key=lambda member: batch.transitions[member].index)
            returns[ordered] = self._of(tuple(batch.transitions[member] for member in ordered), rollout_id)
        return (among_rollouts(batch, returns, differing_calls=True),)

    def _of(self, transitions: tuple[Transition, ...], rollout_id: str) -> FloatArray:
        """What the function gives for one rollout, checked."""
        name = _name(self.call)
        try:
            given = list(self.call(transitions))
            numbers = np.array(given, dtype=np.float64)
        except Exception as error:  # the user's function may raise anything, and give anything
            raise PluginError(
                f"The credit function {name} failed on rollout {rollout_id}: {type(error).__name__}: {error}",
                cure="It is called with the tuple of a rollout's transitions and gives one number for each",
            ) from error
        if numbers.shape != (len(transitions),):
            problem = f"gave {len(given)} numbers for the {len(transitions)} transitions"
        elif not np.isfinite(numbers).all():
            problem = f"gave {given} for the transitions"
        else:
            return numbers
        raise PluginError(
            f"The credit function {name} {problem} of rollout {rollout_id}", cure="Give one finite number for each"
        )


def _name(function: Callable[..., Any]) -> str:
    """The function as a configuration names it, as far as it says so itself."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}" if module else name
