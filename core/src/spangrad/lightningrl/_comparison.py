"""Statistics over groups of calls that are compared with each other, in which every unit weighs the same.

A unit is a rollout, unless a credit assigner says otherwise: a rollout of ten calls moves a mean as much as a rollout of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spangrad.transitions import BoolArray, FloatArray, IntArray

EQUAL_TOLERANCE = 1e-8
"""Two returns count as equal when they differ by at most this much of the larger one's size (of 1, where that is less):
far above the rounding of summed float64 rewards, far below any difference a reward is meant to express."""

_SPARSE = 8
"""Ids up to so many times their number are counted, not sorted."""

NO_GROUP = -1
"""In `groups`: the transition is compared with none."""


@dataclass(frozen=True)
class Comparison:
    """Returns of transitions, summed up per unit and per group. Axis letters: T transitions, U units, G groups."""

    returns: FloatArray
    """(T,) in the unit of the rewards."""
    groups: IntArray
    """(T,) transitions of equal number are compared with each other; `NO_GROUP` with none."""
    units: IntArray
    """(T,) transitions of equal number count once in the statistics of their group, by their mean."""
    values: FloatArray | None = None
    """(T,) what each transition brings into the mean of its group, where that is not its own return."""
    weight: float | FloatArray = 1.0
    """What the advantages are multiplied by before those of several comparisons are summed; one number, or (T,)."""
    differing_calls: bool = False
    """Returns of one unit differ for a reason: a group of equal units has something to tell all the same."""
    names: tuple[str, ...] = ()
    """(T,) what each transition's group is called beyond this batch; only where the estimator remembers something of it."""

    @cached_property
    def group_index(self) -> IntArray:
        """(T,) the groups numbered from 0 without gaps; transitions that are compared with none have one to themselves."""
        alone = self.groups == NO_GROUP
        apart = self.groups.max(initial=0) + 1 + np.arange(len(self.groups))
        return numbered(np.where(alone, apart, self.groups))

    @cached_property
    def unit_index(self) -> IntArray:
        """(T,) the units numbered from 0 without gaps; a unit lies in one group only."""
        units = numbered(self.units)
        groups = np.zeros(len(units), dtype=np.int64)
        groups[units] = self.group_index
        if np.array_equal(groups[units], self.group_index):
            return units
        return numbered(self.group_index * (units.max(initial=0) + 1) + units)

    @cached_property
    def unit_groups(self) -> IntArray:
        """(U,) the group of each unit."""
        groups = np.zeros(int(self.unit_index.max(initial=-1)) + 1, dtype=np.int64)
        groups[self.unit_index] = self.group_index
        return groups

    @cached_property
    def unit_values(self) -> FloatArray:
        """(U,) the mean of what each unit's transitions bring in."""
        return self.unit_means(self.returns if self.values is None else self.values)

    @cached_property
    def group_sizes(self) -> IntArray:
        """(G,) units per group."""
        return np.bincount(self.unit_groups, minlength=int(self.group_index.max(initial=-1)) + 1)

    @cached_property
    def group_means(self) -> FloatArray:
        """(G,) mean of the units' values."""
        return self._group_sums(self.unit_values) / self.group_sizes

    @cached_property
    def group_stds(self) -> FloatArray:
        """(G,) spread of the returns around the group's mean, each unit weighing the same, unbiased in the number of units
        (n - 1); 0 for a single unit. Where calls of one unit have different returns, the spread within the unit counts too,
        so no return can be many deviations away just because the units' means are close.
        """
        squares = self.unit_means(self.centred**2)
        spread: FloatArray = np.sqrt(self._group_sums(squares) / np.maximum(self.group_sizes - 1, 1))
        return np.where(self.group_sizes > 1, spread, 0.0)

    @cached_property
    def centred(self) -> FloatArray:
        """(T,) returns less the mean of their group."""
        return self.returns - self.group_means[self.group_index]

    @cached_property
    def alone(self) -> BoolArray:
        """(T,) the transition's unit is the only one of its group."""
        alone: BoolArray = self.group_sizes == 1
        return alone[self.group_index]

    @cached_property
    def without_variance(self) -> BoolArray:
        """(G,) two or more units, and all have equal values (see `EQUAL_TOLERANCE`)."""
        values = self.returns if self.differing_calls else self.unit_values
        groups = self.group_index if self.differing_calls else self.unit_groups
        low = np.full(len(self.group_sizes), np.inf)
        high = np.full(len(self.group_sizes), -np.inf)
        np.minimum.at(low, groups, values)
        np.maximum.at(high, groups, values)
        size = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
        equal: BoolArray = high - low <= EQUAL_TOLERANCE * size
        return equal & (self.group_sizes > 1)

    @property
    def compared(self) -> BoolArray:
        """(T,) the transition is in a group at all."""
        compared: BoolArray = self.groups != NO_GROUP
        return compared

    @cached_property
    def real_groups(self) -> BoolArray:
        """(G,) a group that somebody asked for, not the place of one transition that is compared with none."""
        real = np.zeros(len(self.group_sizes), dtype=np.bool_)
        real[self.group_index[self.compared]] = True
        return real

    def has_signal(self, min_group: int) -> BoolArray:
        """(T,) the transition's group has at least `min_group` units, and they differ."""
        signal: BoolArray = (self.group_sizes >= min_group) & ~self.without_variance & self.real_groups
        return signal[self.group_index]

    def unit_means(self, values: FloatArray) -> FloatArray:
        """(U,) means of (T,) values over each unit's transitions."""
        return np.bincount(self.unit_index, weights=values) / self._unit_sizes

    @cached_property
    def _unit_sizes(self) -> IntArray:
        """(U,) transitions per unit."""
        return np.bincount(self.unit_index)

    def _group_sums(self, values: FloatArray) -> FloatArray:
        """(G,) sums of (U,) values."""
        sums: FloatArray = np.bincount(self.unit_groups, weights=values, minlength=len(self.group_sizes)).astype(
            np.float64
        )
        return sums


def numbered(ids: IntArray) -> IntArray:
    """(T,) the ids numbered from 0 without gaps, in their own order."""
    if not len(ids) or ids.min() < 0 or ids.max() > _SPARSE * len(ids):
        index: IntArray = np.unique(ids, return_inverse=True)[1]
        return index.reshape(-1)
    present = np.zeros(int(ids.max()) + 1, dtype=np.int64)  # as long as there are ids, so nothing need be sorted
    present[ids] = 1
    return (np.cumsum(present) - 1)[ids]
