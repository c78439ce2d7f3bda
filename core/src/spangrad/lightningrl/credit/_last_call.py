"""Credit for the last step alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spangrad.lightningrl._comparison import NO_GROUP, Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts
from spangrad.lightningrl.credit._steps import last_steps
from spangrad.transitions import BoolArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class LastCall:
    """The calls of a rollout's deepest step get the rollout's reward and their own; all others are compared with none.

    For agents whose earlier calls only gather what the last one answers from and should not change. What earlier calls were
    rewarded with is unused, and a warning says so.
    """

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """The rollout's reward and the call's own, in the groups of the last steps."""
        returns = batch.rollout_rewards[batch.rollout_index] + batch.call_rewards
        earlier = self.unused_rewards(batch)
        compared = among_rollouts(
            batch, np.where(earlier, 0.0, returns), differing_calls=bool(batch.call_rewards.any())
        )
        return (
            Comparison(
                compared.returns,
                np.where(earlier, NO_GROUP, compared.groups),
                compared.units,
                differing_calls=compared.differing_calls,
            ),
        )

    def unused_rewards(self, batch: TransitionBatch) -> BoolArray:
        """(T,) the call is not of its rollout's last step."""
        earlier = np.ones(len(batch), dtype=np.bool_)
        earlier[last_steps(batch)] = False
        return earlier
