"""Calls made in the same state, compared with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import CreditNeeds, outcome
from spangrad.lightningrl.credit._options import check_gamma, check_weight
from spangrad.lightningrl.credit._states import state_index
from spangrad.lightningrl.credit._steps import rewards_to_come
from spangrad.transitions import TransitionBatch

Units = Literal["call", "rollout"]


@dataclass(frozen=True, slots=True)
class GiGPO:
    """A = A(episode) + omega * A(step) (GiGPO, arXiv 2505.10978, equations 3 and 5 to 8).

    The episode's part compares the rollouts of a task by their whole return, as `Identical` does. The step's part compares the
    discounted rewards to come of all calls of the task that were made in the same state; who was alone in a state gets
    nothing from it. The paper's F_norm is the estimator: "grpo" divides by the standard deviation, "dr_grpo" by 1.
    """

    gamma: float = 0.95
    """Discount per step, from 0 to 1."""
    omega: float = 1.0
    """Weight of the step's part against the episode's."""
    units: Units = "call"
    """What weighs the same in a state's mean. call: every visit, as published. rollout: every rollout, however often it came
    back, so one that walks in circles does not outvote the others."""
    needs: ClassVar[CreditNeeds] = CreditNeeds(states=True, own_groups=True)

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        check_weight("omega", self.omega)
        if self.units not in get_args(Units):
            raise ConfigError(f"units is {self.units!r}", cure=f"Give one of {', '.join(get_args(Units))}")

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """Whole returns among rollouts, and rewards to come among the calls made in one state."""
        to_come, _ = rewards_to_come(batch, batch.call_rewards, batch.rollout_rewards, self.gamma)
        units = np.arange(len(batch)) if self.units == "call" else batch.rollout_index
        step = Comparison(to_come, state_index(batch), units, weight=self.omega, differing_calls=True)
        return outcome(batch), step
