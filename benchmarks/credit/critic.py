"""A value for everything an agent can see: a table, as the policy is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SHARE = 0.5
"""How far a value moves towards the mean of a step's targets. Chosen once, not tuned."""


class Critic:
    """A value for each (agent, state), 0 at first.

    Args:
        states: all (agent, state) pairs.
    """

    def __init__(self, states: Iterable[tuple[str, str]]) -> None:
        self._rows = {pair: row for row, pair in enumerate(states)}
        self._values: Array = np.zeros(len(self._rows))

    def values(self, seen: Sequence[tuple[str, str]]) -> list[Array]:
        """(T,) of (1,) the value of what was seen at each call, which is one token."""
        return [self._values[[self._rows[pair]]] for pair in seen]

    def learn(self, seen: Sequence[tuple[str, str]], targets: Array) -> None:
        """Moves the value of all that was seen towards the mean of its targets (T,)."""
        rows = [self._rows[pair] for pair in seen]
        counts = np.bincount(rows, minlength=len(self._values))
        means = np.bincount(rows, weights=targets, minlength=len(self._values)) / np.maximum(counts, 1)
        self._values = np.where(counts > 0, self._values + SHARE * (means - self._values), self._values)
