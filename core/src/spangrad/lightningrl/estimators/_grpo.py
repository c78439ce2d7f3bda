"""Group relative advantages, with and without the division by the standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements, check_eps, weighted_sum
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class GRPO:
    """A = (G - mean) / (std + eps) over the rollouts of a task; std is unbiased (arXiv 2402.03300, section 4.1.2)."""

    eps: float = 1e-6
    """Added to the standard deviation, in the unit of the rewards."""
    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) group-normalised returns."""
        return weighted_sum(comparisons, lambda comparison: normalised(comparison, self.eps))


@dataclass(frozen=True, slots=True)
class DrGRPO:
    """A = G - mean over the rollouts of a task (Dr. GRPO, arXiv 2503.20783, section 3.2).

    Leaving out the division by the standard deviation removes the bias towards tasks that are nearly always or nearly never
    solved; the step then scales with the rewards. The paper pairs it with the weighting "constant".
    """

    requirements: ClassVar[Requirements] = Requirements(min_group=2)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) returns less the mean of their group."""
        return weighted_sum(comparisons, lambda comparison: np.where(comparison.alone, 0.0, comparison.centred))


def normalised(comparison: Comparison, eps: float) -> FloatArray:
    """(T,) returns less the mean of their group, over its standard deviation; 0 where there is no other to be compared with, or
    nothing but rounding between them.

    Args:
        comparison: what is compared.
        eps: added to the standard deviation; may be 0.
    """
    scale = (comparison.group_stds + eps)[comparison.group_index]
    tells = comparison.has_signal(2) & (scale > 0)
    return np.where(tells, comparison.centred / np.where(tells, scale, 1.0), 0.0)
