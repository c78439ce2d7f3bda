"""What an estimator is that goes by a learnt value instead of comparing rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spangrad.lightningrl.estimators._estimator import AdvantageEstimator, Requirements
from spangrad.transitions import FloatArray, IntArray, TransitionBatch, ValueTargets


@dataclass(frozen=True)
class ValueEstimates:
    """What such an estimator makes of T transitions."""

    returns: FloatArray
    """(T,) what each call came to, seen from its beginning; for the ledger."""
    advantages: FloatArray
    """(T,); where tokens have their own, their mean."""
    token_advantages: tuple[FloatArray, ...] | None
    """(T,) of (A,) one advantage per sampled token; None where all tokens of a call share the call's."""
    targets: ValueTargets
    """What the values should have been."""


@runtime_checkable
class ValueEstimator(Protocol):
    """Turns rewards and values into advantages and into targets for the values; declares `values`. Pure, like the others.

    It makes its own returns, so it takes no credit assigner's, and it needs no second rollout of a task.
    """

    @property
    def requirements(self) -> Requirements:
        """What the estimator needs."""
        ...

    def estimates(self, batch: TransitionBatch, values: Sequence[FloatArray | None], units: IntArray) -> ValueEstimates:
        """Advantages and targets.

        Args:
            batch: the transitions.
            values: (T,) of (A,) the value before each sampled token; None for a call whose value is not known.
            units: (T,) calls of equal number weigh as one, if the estimator averages over the batch.
        """
        ...


Estimator = AdvantageEstimator | ValueEstimator
"""Either kind; told apart by their methods."""
