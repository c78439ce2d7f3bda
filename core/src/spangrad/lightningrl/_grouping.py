"""Who is compared with whom, beyond what the credit assigner says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from spangrad.lightningrl._comparison import NO_GROUP, Comparison
from spangrad.transitions import IntArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class Grouping:
    """Options that hold for every credit assigner and estimator.

    With `per_agent` and GRPO this is Dr. MAS (arXiv 2602.08847): the mean and deviation of one agent's calls never come from the
    calls of another, whose rewards may lie elsewhere. Its published code counts calls; so does `statistics = "call"`.
    """

    per_agent: bool = False
    """Calls are compared only with calls of the same agent."""
    statistics: Literal["rollout", "call"] = "rollout"
    """What weighs the same in a mean: a rollout, however many calls it has, or a call."""

    def applied(
        self, comparisons: Sequence[Comparison], batch: TransitionBatch, *, among: Literal["task", "batch"]
    ) -> tuple[Comparison, ...]:
        """The comparisons a credit assigner asked for, regrouped.

        Args:
            comparisons: as the assigner made them.
            batch: the transitions.
            among: what the estimator compares within; with "batch" all groups are one.
        """
        return tuple(self._applied(comparison, batch, among) for comparison in comparisons)

    def _applied(self, comparison: Comparison, batch: TransitionBatch, among: str) -> Comparison:
        groups, units = comparison.groups, comparison.units
        if among == "batch":
            groups = np.where(groups == NO_GROUP, NO_GROUP, 0)
        if self.per_agent:
            agents = _agents(batch)
            apart = groups * (agents.max(initial=0) + 1) + agents
            groups = np.where(groups == NO_GROUP, NO_GROUP, apart)
        if self.statistics == "call":
            units = np.arange(len(batch))
        return replace(comparison, groups=groups, units=units)


def _agents(batch: TransitionBatch) -> IntArray:
    """(T,) the agents numbered in order of first appearance; calls of no known agent are one agent's."""
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(t.agent, len(numbers)) for t in batch.transitions], dtype=np.int64)
