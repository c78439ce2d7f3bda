"""Confidence intervals of what is measured on held-out tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share of successes with its 95% interval."""

    successes: int
    count: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.successes / self.count if self.count else math.nan


def proportion(successes: int, count: int) -> Proportion:
    """Wilson's score interval (Wilson 1927), which stays inside [0, 1] and is right near its ends.

    Args:
        successes: how many of `count` succeeded.
        count: how many were tried; 0 gives the interval [0, 1].
    """
    if count == 0:
        return Proportion(0, 0, 0.0, 1.0)
    share = successes / count
    square = Z_95**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = Z_95 / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return Proportion(successes, count, max(0.0, centre - half), min(1.0, centre + half))
