"""Credit by the distance of a call to the rewards that came after it."""

from __future__ import annotations

from dataclasses import dataclass

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.lightningrl.credit._options import check_gamma
from spangrad.lightningrl.credit._steps import rewards_to_come
from spangrad.transitions import TransitionBatch


@dataclass(frozen=True, slots=True)
class Discounted:
    """The reward still to come, discounted per step of the rollout: G_d = r_d + gamma * G_(d+1).

    Calls are compared with the average call of the other rollouts: what a rollout brings into the mean is the mean of its
    calls' returns. That centres late calls, which stand near the reward, and early ones alike, but in a mean that counts the
    rollout itself ("grpo", "dr_grpo") its own number of calls moves its baseline: where calls have rewards and the agent decides
    when to stop, `ReturnToGo` is the unbiased choice. The rollout's own reward arrives at the deepest step. With gamma = 1
    nothing is discounted, and `ReturnToGo` has the better baseline.
    """

    gamma: float = 0.95
    """Discount per step, from 0 to 1. A step is a whole call: discounting by tokens would punish long answers."""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """G of each transition."""
        returns, _ = rewards_to_come(batch, batch.call_rewards, batch.rollout_rewards, self.gamma)
        return (among_rollouts(batch, returns, differing_calls=bool(batch.call_rewards.any())),)
