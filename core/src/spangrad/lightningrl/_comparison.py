"""Statistics over the rollouts of each task, in which every rollout weighs the same whatever its number of calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spangrad.transitions import BoolArray, FloatArray, IntArray, TransitionBatch

EQUAL_TOLERANCE = 1e-8
"""Two returns count as equal when they differ by at most this much of the larger one's size (of 1, where that is less):
far above the rounding of summed float64 rewards, far below any difference a reward is meant to express."""


@dataclass(frozen=True)
class GroupComparison:
    """Returns of a batch, summed up per rollout and per group. Axis letters: T transitions, R rollouts, G groups."""

    batch: TransitionBatch
    returns: FloatArray
    """(T,) as a credit assigner gave them."""

    @cached_property
    def rollout_values(self) -> FloatArray:
        """(R,) the mean return of each rollout's transitions: with identical credit the rollout's return itself."""
        return rollout_means(self.batch, self.returns)

    @cached_property
    def group_sizes(self) -> IntArray:
        """(G,) rollouts per group."""
        return np.bincount(self.batch.group_index, minlength=len(self.batch.group_keys))

    @cached_property
    def group_means(self) -> FloatArray:
        """(G,) mean of the rollouts' values."""
        return self._group_sums(self.rollout_values) / self.group_sizes

    @cached_property
    def group_stds(self) -> FloatArray:
        """(G,) spread of the returns around the group's mean, each rollout weighing the same, unbiased in the number of
        rollouts (n - 1); 0 for a single rollout. Where calls of one rollout have different returns, the spread within the
        rollout counts too, so no return can be many deviations away just because the rollouts' means are close.
        """
        deviations = self.returns - self.group_means[self.transition_groups]
        squares = rollout_means(self.batch, deviations**2)
        spread: FloatArray = np.sqrt(self._group_sums(squares) / np.maximum(self.group_sizes - 1, 1))
        return np.where(self.group_sizes > 1, spread, 0.0)

    @cached_property
    def transition_groups(self) -> IntArray:
        """(T,) which group each transition belongs to."""
        return self.batch.group_index[self.batch.rollout_index]

    @cached_property
    def alone(self) -> BoolArray:
        """(T,) the transition's rollout is the only one of its group."""
        alone: BoolArray = self.group_sizes == 1
        return alone[self.transition_groups]

    @cached_property
    def without_variance(self) -> BoolArray:
        """(G,) two or more rollouts, and all have equal values (see `EQUAL_TOLERANCE`)."""
        values, groups = self.rollout_values, self.batch.group_index
        low = np.full(len(self.group_sizes), np.inf)
        high = np.full(len(self.group_sizes), -np.inf)
        np.minimum.at(low, groups, values)
        np.maximum.at(high, groups, values)
        size = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
        equal: BoolArray = high - low <= EQUAL_TOLERANCE * size
        return equal & (self.group_sizes > 1)

    def _group_sums(self, values: FloatArray) -> FloatArray:
        """(G,) sums of (R,) values."""
        sums: FloatArray = np.zeros(len(self.group_sizes))
        np.add.at(sums, self.batch.group_index, values)
        return sums


def rollout_means(batch: TransitionBatch, values: FloatArray) -> FloatArray:
    """(R,) means of (T,) values over each rollout's transitions."""
    rollouts = len(batch.rollout_keys)
    counts = np.bincount(batch.rollout_index, minlength=rollouts)
    return np.bincount(batch.rollout_index, weights=values, minlength=rollouts) / counts
