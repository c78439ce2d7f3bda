"""REINFORCE++: normalised over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements, check_eps, weighted_sum
from spangrad.lightningrl.estimators._grpo import normalised
from spangrad.lightningrl.estimators._whitening import whitened
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus:
    """A = (G - mean) / (std + eps) over all rollouts of the batch, whatever their task (arXiv 2501.03262, section 3).

    Needs no second rollout of a task. Trainers that work on padded rows take mean and std over tokens instead.
    """

    eps: float = 1e-6
    """Added to the standard deviation, in the unit of the rewards."""
    requirements: ClassVar[Requirements] = Requirements(min_group=2, among="batch")

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) batch-normalised returns."""
        return weighted_sum(comparisons, lambda comparison: normalised(comparison, self.eps))


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
        check_eps(self.eps)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) group-centred, batch-normalised returns."""
        return weighted_sum(comparisons, lambda c: whitened(c, c.centred, self.eps, alone=c.alone))
