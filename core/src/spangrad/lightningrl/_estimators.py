"""The low level of LightningRL: returns of the rollouts of a task -> one advantage per transition.

All statistics are over rollouts, never over rows: a rollout of ten calls moves a mean as much as a rollout of one. A rollout
without others to compare it with gets advantage 0 (some trainers leave it its raw return there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import GroupComparison, rollout_means
from spangrad.transitions import FloatArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an estimator needs; a configuration that does not give it is refused before the first rollout."""

    min_group: int = 1
    """Rollouts of one task it needs for any signal; smaller groups are dropped and counted."""
    level: Literal["transition"] = "transition"
    """What one advantage belongs to; the backend must list it in its `Capabilities.estimator_levels`."""


class AdvantageEstimator(Protocol):
    """Turns returns into advantages. Pure, like a credit assigner."""

    @property
    def requirements(self) -> Requirements:
        """What the estimator needs."""
        ...

    def advantages(self, batch: TransitionBatch, returns: FloatArray) -> FloatArray:
        """(T,) the advantage of each transition, from its return (T,)."""
        ...


@dataclass(frozen=True, slots=True)
class GRPO:
    """A = (G - mean) / (std + eps) over the rollouts of a task; std is unbiased (arXiv 2402.03300, section 4.1.2)."""

    eps: float = 1e-6
    """Added to the standard deviation, in the unit of the rewards."""
    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def __post_init__(self) -> None:
        _check_eps(self.eps)

    def advantages(self, batch: TransitionBatch, returns: FloatArray) -> FloatArray:
        """(T,) group-normalised returns."""
        groups = GroupComparison(batch, returns)
        scale = (groups.group_stds + self.eps)[groups.transition_groups]
        return np.where(groups.alone, 0.0, _centred(groups) / scale)


@dataclass(frozen=True, slots=True)
class DrGRPO:
    """A = G - mean over the rollouts of a task (Dr. GRPO, arXiv 2503.20783, section 3.2).

    Leaving out the division by the standard deviation removes the bias towards tasks that are nearly always or nearly never
    solved; the step then scales with the rewards. The paper pairs it with the weighting "constant".
    """

    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def advantages(self, batch: TransitionBatch, returns: FloatArray) -> FloatArray:
        """(T,) returns less the mean of their group."""
        groups = GroupComparison(batch, returns)
        return np.where(groups.alone, 0.0, _centred(groups))


@dataclass(frozen=True, slots=True)
class RLOO:
    """A = G - mean of the *other* rollouts of the task (arXiv 2402.14740, section 3.2): leaves out a rollout, never a row."""

    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def advantages(self, batch: TransitionBatch, returns: FloatArray) -> FloatArray:
        """(T,) returns less the mean of the other rollouts of their group."""
        groups = GroupComparison(batch, returns)
        size = groups.group_sizes[batch.group_index]
        total = groups.group_means[batch.group_index] * size
        others = (total - groups.rollout_values) / np.maximum(size - 1, 1)
        return np.where(groups.alone, 0.0, returns - others[batch.rollout_index])


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlusBaseline:
    """A' = G - mean over the rollouts of a task, then (A' - mean) / (std + eps) over the batch (REINFORCE++ with baseline,
    arXiv 2501.03262, section 3).

    The second mean and std are over all rollouts of the batch that have others to compare with, those of groups without
    variance included, as published. Trainers that work on padded rows take them over tokens instead, so that long answers
    weigh more; where all rollouts have equally many tokens the two differ only in what the unbiased deviation counts.
    """

    eps: float = 1e-6
    """Added to the standard deviation, in the unit of the rewards."""
    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def __post_init__(self) -> None:
        _check_eps(self.eps)

    def advantages(self, batch: TransitionBatch, returns: FloatArray) -> FloatArray:
        """(T,) group-centred, batch-normalised returns."""
        groups = GroupComparison(batch, returns)
        centred = _centred(groups)
        compared = (groups.group_sizes > 1)[batch.group_index]
        count = int(compared.sum())
        if count == 0:
            return np.zeros(len(batch), dtype=np.float64)
        mean = float(rollout_means(batch, centred)[compared].mean())
        squares = rollout_means(batch, (centred - mean) ** 2)[compared]
        std = float(np.sqrt(squares.sum() / (count - 1)))
        return np.where(groups.alone, 0.0, (centred - mean) / (std + self.eps))


def _centred(groups: GroupComparison) -> FloatArray:
    """(T,) returns less the mean of their group."""
    return groups.returns - groups.group_means[groups.transition_groups]


def _check_eps(eps: float) -> None:
    """Refuses an eps that is no positive finite number."""
    if type(eps) not in {int, float} or not 0 < eps < np.inf:
        raise ConfigError(f"eps is {eps!r}", cure="Give a small number above 0, such as 1e-6")
