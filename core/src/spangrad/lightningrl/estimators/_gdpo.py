"""Several rewards, each normalised by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements, check_eps, weighted_sum
from spangrad.lightningrl.estimators._grpo import normalised
from spangrad.lightningrl.estimators._whitening import whitened
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class GDPO:
    """A' = sum over the rewards k of w_k * (G_k - mean_k) / std_k over the rollouts of a task, then
    (A' - mean) / (std + eps) over the batch (GDPO, arXiv 2601.05242).

    Where GRPO sees only the sum of the rewards, a rollout that did well in one of two and a rollout that did well in both can come
    out the same; here they do not. The second normalisation keeps the size of a step independent of how many rewards
    there are. Its statistics are over all rollouts of the batch that have others to compare with, those of groups without
    variance included.
    """

    eps: float = 1e-6
    """Added to the standard deviation over the batch, which is of size 1 whatever the rewards are. Nothing is added to those of
    the groups: where rewards pull in opposite ways, the sum would be what was added, blown up by the second division."""
    requirements: ClassVar[Requirements] = Requirements(min_group=2, components=True)

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) the weighted sum of the comparisons' group-normalised returns, normalised over the batch."""
        total = weighted_sum(comparisons, lambda comparison: normalised(comparison, 0.0))
        alone = np.all([comparison.alone for comparison in comparisons], axis=0)
        return whitened(comparisons[0], total, self.eps, alone=alone)
