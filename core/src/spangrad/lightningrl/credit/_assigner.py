"""What a credit assigner is, and what most of them share. Axis letters: T transitions, R rollouts."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.transitions import FloatArray, TransitionBatch


class CreditAssigner(Protocol):
    """Says what each transition earned and with which others it is compared.

    Pure: the same batch gives the same result, and nothing is remembered.
    """

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """One comparison or several, whose advantages are summed; the ledger shows the returns of the first."""
        ...


def among_rollouts(batch: TransitionBatch, returns: FloatArray, **settings: Any) -> Comparison:
    """The usual comparison: with the calls of all rollouts of the same task, every rollout weighing the same.

    Args:
        batch: the transitions.
        returns: (T,) what each earned.
        settings: further fields of the `Comparison`.
    """
    return Comparison(returns, batch.group_index[batch.rollout_index], batch.rollout_index, **settings)


def rollout_returns(batch: TransitionBatch) -> FloatArray:
    """(R,) undiscounted return R_i of each rollout: the rollout's reward plus the sum of its calls' rewards."""
    sums = np.bincount(batch.rollout_index, weights=batch.call_rewards, minlength=len(batch.rollout_keys))
    return batch.rollout_rewards + sums
