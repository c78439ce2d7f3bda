"""Credit for what came after a call, with a baseline that is the same at every step."""

from __future__ import annotations

from dataclasses import dataclass

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.lightningrl.credit._options import check_gamma
from spangrad.lightningrl.credit._steps import rewards_to_come
from spangrad.transitions import TransitionBatch


@dataclass(frozen=True, slots=True)
class ReturnToGo:
    """The rewards of a call's step and of all later ones, plus the rollout's: G_d = r_d + gamma * G_(d+1) (REINFORCE).

    What a rollout brings into the mean is its whole return, seen from its first step, however many calls it made, and every call
    subtracts that mean once. So the baseline does not depend on when a rollout stopped: with gamma = 1 the expected gradient is
    that of the expected return with the estimator "rloo", and (n - 1) / n of it, for n rollouts, with "dr_grpo". Subtracting
    the mean reward of each turn, as many times as a rollout took turns, would pay for stopping (verl-project/verl#7244).
    """

    gamma: float = 1.0
    """Discount per step, from 0 to 1. A step is a whole call."""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """G of each transition, around the mean of the rollouts' whole returns."""
        returns, whole = rewards_to_come(batch, batch.call_rewards, batch.rollout_rewards, self.gamma)
        rewarded = bool(batch.call_rewards.any())
        return (among_rollouts(batch, returns, values=whole[batch.rollout_index], differing_calls=rewarded),)
