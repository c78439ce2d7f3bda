"""Leave one out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements, weighted_sum
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class RLOO:
    """A = G - mean of the *other* rollouts of the task (arXiv 2402.14740, section 3.2): leaves out a rollout, never a row."""

    requirements: ClassVar[Requirements] = Requirements(min_group=2, whole_rollouts=True)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) returns less the mean of the other rollouts of their group."""
        return weighted_sum(comparisons, _less_the_others)


def _less_the_others(comparison: Comparison) -> FloatArray:
    size = comparison.group_sizes[comparison.unit_groups]
    total = comparison.group_means[comparison.unit_groups] * size
    others = (total - comparison.unit_values) / np.maximum(size - 1, 1)
    return np.where(comparison.alone, 0.0, comparison.returns - others[comparison.unit_index])
