"""Agents that have a part in what their rollouts earn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import CreditNeeds, outcome
from spangrad.transitions import TransitionBatch


@dataclass(frozen=True, slots=True)
class AgentShare:
    """Every call gets its rollout's whole return, and its agent's share of the advantage: A = share * A(R_i).

    The share weighs the advantage and not the return, because an estimator that divides by the standard deviation would divide a
    share of the return out again. A share of 1 is what `Identical` gives.
    """

    shares: Mapping[str, float]
    """Agent -> its share, from 0. Every agent whose calls are trained needs one; they need not sum to 1."""
    needs: ClassVar[CreditNeeds] = CreditNeeds(agents=True)

    def __post_init__(self) -> None:
        given: object = self.shares  # what a configuration may hold
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(
                f"shares is {self.shares!r}", cure="Give a table of agents, such as { writer = 1.0, reviewer = 0.5 }"
            )
        for agent, share in self.shares.items():
            if type(share) not in {int, float} or not isfinite(share) or share < 0:
                raise ConfigError(f"The share of the agent {agent!r} is {share!r}", cure="Give a number from 0")
        if not any(self.shares.values()):
            raise ConfigError("All shares are 0: nothing would be learnt", cure="Give at least one agent a share")

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """R_i of each transition's rollout, weighed by its agent's share.

        Raises:
            ConfigError: a call is of an agent that has no share, or of none that is known.
        """
        agents = [transition.agent for transition in batch.transitions]
        if without := sorted({agent for agent in agents if agent is not None and agent not in self.shares}):
            raise ConfigError(
                f"No share for the agent {', '.join(map(repr, without))} (shares: {', '.join(self.shares)})",
                cure="Give it one, 0 to leave its calls as they are, or take it off policy.train",
            )
        if None in agents:
            raise ConfigError(
                "A call is of no known agent, so it has no share",
                cure="Name the agent in the request's header x-spangrad-agent, or list the named ones in policy.train",
            )
        weights = np.array([self.shares[agent] for agent in agents if agent is not None], dtype=np.float64)
        return (replace(outcome(batch), weight=weights),)

    def warnings(self, batch: TransitionBatch) -> tuple[str, ...]:
        """Names agents that have a share and made no call."""
        idle = [agent for agent in self.shares if all(t.agent != agent for t in batch.transitions)]
        if not idle:
            return ()
        return (f"No call is of the agent {', '.join(map(repr, idle))}, which has a share",)
