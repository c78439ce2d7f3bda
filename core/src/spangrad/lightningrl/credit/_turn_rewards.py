"""The outcome of a rollout and the rewards of its calls, each compared by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.lightningrl.credit._options import check_gamma, check_weight
from spangrad.lightningrl.credit._steps import rewards_to_come
from spangrad.transitions import TransitionBatch


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """A = A(outcome) + omega * A(calls), as MT-GRPO adds turn and outcome advantages (arXiv 2505.11821), without its bias.

    The outcome is the rollout's own reward, which all its calls share. The calls' part is the call rewards from a call's step
    on; MT-GRPO normalises them per turn index, so a rollout subtracts one baseline for each turn it takes, and taking another
    turn costs as much as turns usually bring (verl-project/verl#7244). Here a rollout brings its whole sum of call rewards into
    the mean, and each call subtracts that mean once.

    Being normalised apart, many small call rewards and one large outcome weigh by `omega`, not by their size.
    """

    omega: float = 1.0
    """Weight of the calls' part against the outcome's."""
    gamma: float = 1.0
    """Discount of call rewards per step, from 0 to 1."""

    def __post_init__(self) -> None:
        check_weight("omega", self.omega)
        check_gamma(self.gamma)

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """The rollouts' rewards, and the call rewards to come."""
        none = np.zeros(len(batch.rollout_keys), dtype=np.float64)
        to_come, whole = rewards_to_come(batch, batch.call_rewards, none, self.gamma)
        rewarded = bool(batch.call_rewards.any())
        return (
            among_rollouts(batch, batch.rollout_rewards[batch.rollout_index]),
            among_rollouts(
                batch, to_come, values=whole[batch.rollout_index], weight=self.omega, differing_calls=rewarded
            ),
        )
