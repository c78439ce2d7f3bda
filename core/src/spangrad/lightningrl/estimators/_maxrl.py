"""Maximum likelihood by reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spangrad.errors import RewardError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements, weighted_sum
from spangrad.transitions import FloatArray


@dataclass(frozen=True, slots=True)
class MaxRL:
    """A = (G - mean) / mean over the rollouts of a task (MaxRL, arXiv 2602.02710).

    For rewards of 0 and 1 the mean is the share of successes, so a task weighs the more the more rarely it is solved, as in the
    gradient of the log-likelihood of success. A mean of 0 has no success to learn from, and gives no advantage. Nothing is
    added to the mean: with no return below 0 the quotient is bounded by the number of rollouts.
    """

    requirements: ClassVar[Requirements] = Requirements(min_group=2, no_losses=True)

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) returns less the mean of their group, over that mean.

        Raises:
            RewardError: a return is below 0, where the mean says nothing about likelihood.
        """
        return weighted_sum(comparisons, _relative)


def _relative(comparison: Comparison) -> FloatArray:
    compared = comparison.compared
    brought_in = comparison.returns if comparison.values is None else comparison.values
    lowest = min(comparison.returns[compared].min(initial=0.0), brought_in[compared].min(initial=0.0))
    if lowest < 0:
        raise RewardError(
            f"maxrl divides by the mean return, but a call has the return {lowest:g}, below 0",
            cure="Shift the rewards so that the worst is 0, or choose grpo, dr_grpo or rloo",
        )
    means = comparison.group_means[comparison.group_index]
    successful = (means > 0) & ~comparison.alone
    return np.where(successful, comparison.centred / np.where(successful, means, 1.0), 0.0)
