"""Who is compared with whom, beyond what the credit assigner says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from spangrad.lightningrl._comparison import NO_GROUP, Comparison
from spangrad.transitions import IntArray, TransitionBatch

UNNAMED: Final = "(unnamed)"
"""What the agent of a call is called where no name was captured."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Options that hold for every credit assigner and estimator.

    With `per_agent` and GRPO this is Dr. MAS (arXiv 2602.08847): mean and deviation of an agent's calls never come from the calls
    of another, whose rewards may lie elsewhere. The paper averages over an agent's calls; so does `statistics = "call"`.
    """

    per_agent: bool = False
    """Calls are compared only with calls of the same agent."""
    statistics: Literal["rollout", "call"] = "rollout"
    """What weighs the same in a mean: a rollout, however many calls it has, or a call."""

    def applied(
        self, comparisons: Sequence[Comparison], batch: TransitionBatch, *, among: Literal["task", "batch", "agent"]
    ) -> tuple[Comparison, ...]:
        """The comparisons a credit assigner asked for, regrouped.

        Args:
            comparisons: as the assigner made them.
            batch: the transitions.
            among: what the estimator compares within; with "batch" all groups are one, with "agent" there is one per agent,
                and they have its name.
        """
        return tuple(self._applied(comparison, batch, among) for comparison in comparisons)

    def units(self, batch: TransitionBatch) -> IntArray:
        """(T,) transitions of equal number count once in a mean."""
        return np.arange(len(batch)) if self.statistics == "call" else batch.rollout_index

    def _applied(self, comparison: Comparison, batch: TransitionBatch, among: str) -> Comparison:
        groups, units, names = comparison.groups, comparison.units, comparison.names
        compared = comparison.compared
        if among != "task":
            groups = np.where(compared, 0, NO_GROUP)
        if self.per_agent or among == "agent":
            agents = _numbered(agent_names(batch))
            groups = np.where(compared, groups * (agents.max(initial=0) + 1) + agents, NO_GROUP)
        if among == "agent":
            names = agent_names(batch)
        if self.statistics == "call":
            units = self.units(batch)
        return replace(comparison, groups=groups, units=units, names=names)


def agent_names(batch: TransitionBatch) -> tuple[str, ...]:
    """(T,) the agent of each transition; calls of no known agent are those of one agent, `UNNAMED`."""
    return tuple(UNNAMED if transition.agent is None else transition.agent for transition in batch.transitions)


def _numbered(names: Sequence[str]) -> IntArray:
    """(T,) the names numbered in order of first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
