"""A policy small enough to be learnt in seconds: one row of logits for everything an agent can see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Policy:
    """A softmax over actions for each (agent, state), updated by Adam.

    Args:
        states: all (agent, state) pairs.
        actions: how many actions there are.
        learning_rate: of Adam (arXiv 1412.6980), with its usual betas.
    """

    def __init__(self, states: Iterable[tuple[str, str]], actions: int, learning_rate: float) -> None:
        self._rows = {pair: row for row, pair in enumerate(states)}
        self._logits: Array = np.zeros((len(self._rows), actions))
        self._first, self._second, self._updates = np.zeros_like(self._logits), np.zeros_like(self._logits), 0
        self._learning_rate = learning_rate

    def draw(self, agent: str, state: str, random: np.random.Generator) -> tuple[int, float]:
        """An action, and its log-probability."""
        chances = self._chances(self._rows[agent, state])
        action = int(np.searchsorted(chances.cumsum(), random.random() * chances.sum(), side="right"))
        return action, float(np.log(chances[action]))

    def update(self, seen: Sequence[tuple[str, str]], actions: Sequence[int], factors: Array) -> None:
        """One step up the policy gradient: sum of factor x grad log p(action | what was seen).

        Args:
            seen: (agent, state) of each call.
            actions: what was done there.
            factors: (T,) advantage x weight of each call.
        """
        gradient = np.zeros_like(self._logits)
        for pair, action, factor in zip(seen, actions, factors, strict=True):
            row = self._rows[pair]
            gradient[row] -= factor * self._chances(row)
            gradient[row, action] += factor
        self._updates += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        first = self._first / (1 - 0.9**self._updates)
        second = self._second / (1 - 0.999**self._updates)
        self._logits += self._learning_rate * first / (np.sqrt(second) + 1e-8)

    def _chances(self, row: int) -> Array:
        logits = self._logits[row]
        shifted = np.exp(logits - logits.max())
        chances: Array = shifted / shifted.sum()
        return chances
