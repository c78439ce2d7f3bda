"""What an advantage estimator is, and what most of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an estimator needs; a configuration that does not give it is refused before the first rollout."""

    min_group: int = 1
    """Units a comparison needs for any signal; smaller groups are dropped and counted."""
    among: Literal["task", "batch", "agent"] = "task"
    """Whether the rollouts of one task are compared with each other, or all rollouts of the batch, or all calls of one agent."""
    level: Literal["transition", "token"] = "transition"
    """What one advantage belongs to; the backend must list it in its `Capabilities.estimator_levels`."""
    components: bool = False
    """Every reward component is compared by itself."""
    memory: bool = False
    """The baseline is remembered from earlier steps (`RememberingEstimator`), so equal returns have something to tell too."""
    values: bool = False
    """It goes by a learnt value (`ValueEstimator`), which the backend must have; it compares no rollouts."""
    averages: bool = True
    """It takes means over rollouts or calls, so what counts once in them makes a difference."""
    no_losses: bool = False
    """It cannot take returns below 0."""
    whole_rollouts: bool = False
    """The formula holds for rollouts only: with a call as the unit of statistics it would be another one."""

    def in_words(self) -> tuple[str, ...]:
        """One phrase per need; empty for an estimator that takes anything."""
        return tuple(self._phrases())

    def _phrases(self) -> Iterator[str]:
        if self.min_group > 1:
            of_what = {"task": "of one task", "batch": "in a step", "agent": "of one agent in a step"}[self.among]
            yield f"at least {self.min_group} rollouts {of_what}"
        if self.components:
            yield "rewards by name"
        if self.memory:
            yield "a baseline kept from step to step"
        if self.values:
            yield "values, from the backend"
            yield "credit and per_agent left out (it compares no calls)"
        if self.no_losses:
            yield "no return below 0"
        if self.whole_rollouts:
            yield 'statistics = "rollout"'
        if self.among == "agent":
            yield "per_agent left out (it always is)"
        yield f"a backend that takes one advantage per {self.level}"


class AdvantageEstimator(Protocol):
    """Turns returns into advantages. Pure, like a credit assigner."""

    @property
    def requirements(self) -> Requirements:
        """What the estimator needs."""
        ...

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) the advantage of each transition; there is at least one comparison, and all are of the same transitions."""
        ...


@runtime_checkable
class RememberingEstimator(AdvantageEstimator, Protocol):
    """An estimator whose numbers depend on earlier steps; it declares `memory`.

    It is as pure as the others: the memory is handed to it and taken from it, and whoever trains keeps it with the checkpoints.
    `advantages` is what it gives where nothing is remembered yet.
    """

    def advantages_recalling(self, comparisons: Sequence[Comparison], memory: Mapping[str, float]) -> FloatArray:
        """(T,) the advantage of each transition.

        Args:
            comparisons: as for `advantages`; they have `names`.
            memory: what `memory_after` gave for the step before; empty at first.
        """
        ...

    def memory_after(self, comparisons: Sequence[Comparison], memory: Mapping[str, float]) -> Mapping[str, float]:
        """What there is to remember after this step, in finite numbers; of the same arguments."""
        ...


def weighted_sum(comparisons: Sequence[Comparison], estimate: Callable[[Comparison], FloatArray]) -> FloatArray:
    """(T,) the sum of what `estimate` gives for each comparison, by the comparisons' weights; nothing from a comparison for
    transitions that it compares with none.
    """
    total = np.zeros(len(comparisons[0].returns))
    for comparison in comparisons:
        total += np.where(comparison.compared, comparison.weight * estimate(comparison), 0.0)
    return total


def check_eps(eps: float) -> None:
    """Refuses an eps that is no positive finite number."""
    if type(eps) not in {int, float} or not 0 < eps < np.inf:
        raise ConfigError(f"eps is {eps!r}", cure="Give a small number above 0, such as 1e-6")
