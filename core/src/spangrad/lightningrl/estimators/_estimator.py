"""What an advantage estimator is, and what most of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an estimator needs; a configuration that does not give it is refused before the first rollout."""

    min_group: int = 1
    """Units a comparison needs for any signal; smaller groups are dropped and counted."""
    among: Literal["task", "batch"] = "task"
    """Whether the rollouts of one task are compared with each other, or all rollouts of the batch."""
    level: Literal["transition"] = "transition"
    """What one advantage belongs to; the backend must list it in its `Capabilities.estimator_levels`."""
    components: bool = False
    """Every reward component is compared by itself."""


class AdvantageEstimator(Protocol):
    """Turns returns into advantages. Pure, like a credit assigner."""

    @property
    def requirements(self) -> Requirements:
        """What the estimator needs."""
        ...

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) the advantage of each transition; there is at least one comparison, and all are of the same transitions."""
        ...


def weighted_sum(comparisons: Sequence[Comparison], estimate: Callable[[Comparison], FloatArray]) -> FloatArray:
    """(T,) the sum of what `estimate` gives for each comparison, by the comparisons' weights."""
    total = np.zeros(len(comparisons[0].returns))
    for comparison in comparisons:
        total += comparison.weight * estimate(comparison)
    return total


def check_eps(eps: float) -> None:
    """Refuses an eps that is no positive finite number."""
    if type(eps) not in {int, float} or not 0 < eps < np.inf:
        raise ConfigError(f"eps is {eps!r}", cure="Give a small number above 0, such as 1e-6")
