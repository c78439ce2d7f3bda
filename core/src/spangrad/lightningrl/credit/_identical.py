"""The paper's credit assignment: all calls of a rollout share its return."""

from __future__ import annotations

from dataclasses import dataclass

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import among_rollouts, rollout_returns
from spangrad.transitions import TransitionBatch


@dataclass(frozen=True, slots=True)
class Identical:
    """Every call of a rollout gets the whole rollout's return R_i: its own reward plus the rewards of all its calls.

    The credit assignment of LightningRL (arXiv 2508.03680, section 3.3).
    """

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """R_i of the rollout each transition belongs to."""
        return (among_rollouts(batch, rollout_returns(batch)[batch.rollout_index]),)
