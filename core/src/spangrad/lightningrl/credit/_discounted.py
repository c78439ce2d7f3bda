"""Credit by the distance of a call to the rewards that came after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.transitions import FloatArray, IntArray, TransitionBatch


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
        check_gamma(self.gamma)

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """G of each transition."""
        rewarded = bool(batch.call_rewards.any())
        returns = returns_to_come(batch, batch.call_rewards, batch.rollout_rewards, self.gamma)
        return (among_rollouts(batch, returns, differing_calls=rewarded),)


def returns_to_come(batch: TransitionBatch, rewards: FloatArray, final: FloatArray, gamma: float) -> FloatArray:
    """(T,) the discounted rewards from each transition's step on.

    Args:
        batch: the transitions.
        rewards: (T,) of each transition.
        final: (R,) what each rollout's deepest step gets besides.
        gamma: discount per step.
    """
    depths = call_depths(batch)
    result = np.zeros(len(batch), dtype=np.float64)
    for rollout, reward in enumerate(final):
        members = np.flatnonzero(batch.rollout_index == rollout)
        to_come = float(reward)
        below: int | None = None
        for depth in np.unique(depths[members])[::-1]:
            if below is not None:
                to_come *= gamma ** (below - int(depth))
            level = members[depths[members] == depth]
            result[level] = rewards[level] + to_come
            to_come += float(rewards[level].sum())
            below = int(depth)
    return result


def call_depths(batch: TransitionBatch) -> IntArray:
    """(T,) the step of its rollout each transition was made in; in order of `index` where nothing more is known."""
    first: dict[tuple[str, int, str], int] = {}
    for t in sorted(batch.transitions, key=lambda t: t.index):
        first.setdefault((t.rollout_id, t.attempt, t.call_id), t.index)
    depths = [first[t.rollout_id, t.attempt, t.call_id] if t.depth is None else t.depth for t in batch.transitions]
    return np.array(depths, dtype=np.int64)


def check_gamma(gamma: float) -> None:
    """Refuses a discount that is no number from 0 to 1."""
    if type(gamma) not in {int, float} or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma!r}", cure="Give a number from 0 to 1")
