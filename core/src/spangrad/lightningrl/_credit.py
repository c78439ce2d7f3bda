"""The high level of LightningRL: rewards of a rollout and of its calls -> one return per transition.

Axis letters as in `spangrad.transitions`: T transitions, R rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spangrad.errors import ConfigError
from spangrad.transitions import FloatArray, IntArray, TransitionBatch


class CreditAssigner(Protocol):
    """Gives each transition its return. Pure: the same batch gives the same returns, and nothing is remembered."""

    def returns(self, batch: TransitionBatch) -> FloatArray:
        """(T,) the return of each transition, in the unit of the rewards."""
        ...


@dataclass(frozen=True, slots=True)
class Identical:
    """Every call of a rollout gets the whole rollout's return R_i: its own reward plus the rewards of all its calls.

    The credit assignment of LightningRL (arXiv 2508.03680, section 3.3).
    """

    def returns(self, batch: TransitionBatch) -> FloatArray:
        """(T,) R_i of the rollout each transition belongs to."""
        return rollout_returns(batch)[batch.rollout_index]


@dataclass(frozen=True, slots=True)
class Discounted:
    """The reward still to come, discounted per step of the rollout: G_d = r_d + gamma * G_(d+1).

    A step is a depth (`Transition.depth`): calls made side by side share one, so the discount does not depend on the order
    in which parallel calls happened to be recorded, and a call never gets the reward of one beside it. The rollout's own
    reward arrives at the deepest step. With gamma = 1 and no call rewards this equals `Identical`.
    """

    gamma: float = 1.0
    """Discount per step, from 0 to 1. A step is a whole call: discounting by tokens would punish long answers."""

    def __post_init__(self) -> None:
        if type(self.gamma) not in {int, float} or not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma is {self.gamma!r}", cure="Give a number from 0 to 1")

    def returns(self, batch: TransitionBatch) -> FloatArray:
        """(T,) G of each transition."""
        depths = _depths(batch)
        result = np.zeros(len(batch), dtype=np.float64)
        for rollout, reward in enumerate(batch.rollout_rewards):
            members = np.flatnonzero(batch.rollout_index == rollout)
            to_come = float(reward)
            below: int | None = None
            for depth in np.unique(depths[members])[::-1]:
                if below is not None:
                    to_come *= self.gamma ** (below - int(depth))
                level = members[depths[members] == depth]
                result[level] = batch.call_rewards[level] + to_come
                to_come += float(batch.call_rewards[level].sum())
                below = int(depth)
        return result


def rollout_returns(batch: TransitionBatch) -> FloatArray:
    """(R,) undiscounted return R_i of each rollout: the rollout's reward plus the sum of its calls' rewards."""
    sums = np.bincount(batch.rollout_index, weights=batch.call_rewards, minlength=len(batch.rollout_keys))
    return batch.rollout_rewards + sums


def _depths(batch: TransitionBatch) -> IntArray:
    """(T,) the step of its rollout each transition was made in; in order of `index` where nothing more is known."""
    first: dict[tuple[str, int, str], int] = {}
    for t in sorted(batch.transitions, key=lambda t: t.index):
        first.setdefault((t.rollout_id, t.attempt, t.call_id), t.index)
    depths = [first[t.rollout_id, t.attempt, t.call_id] if t.depth is None else t.depth for t in batch.transitions]
    return np.array(depths, dtype=np.int64)
