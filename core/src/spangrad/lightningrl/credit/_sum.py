"""Several credit assigners together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import CreditAssigner, CreditNeeds, Warns, needs_of, unused_rewards
from spangrad.lightningrl.credit._options import check_weight
from spangrad.transitions import BoolArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class Sum:
    """The comparisons of all parts, each part's weighed by its weight; the estimator sums their advantages.

    Every comparison is normalised by itself, so weights compare advantages, whatever the size of the rewards behind them. The
    ledger shows the returns of the first part.
    """

    of: Sequence[tuple[CreditAssigner, float]]
    """Assigners and their weights, above 0. In a configuration: names, or tables with options and perhaps a `weight`; whoever
    reads the configuration makes assigners of them."""
    parts: ClassVar[frozenset[str]] = frozenset({"of"})
    """Options that a configuration gives as lists of assigners."""

    def __post_init__(self) -> None:
        if not self.of:
            raise ConfigError("A sum of no credit assigners", cure='List some, like of = ["gigpo", "turn_rewards"]')
        for _, weight in self.of:
            check_weight("weight", weight)

    @property
    def needs(self) -> CreditNeeds:
        """What any of the parts needs."""
        all_needs = [needs_of(credit) for credit, _ in self.of]
        return CreditNeeds(
            states=any(needs.states for needs in all_needs),
            scores=any(needs.scores for needs in all_needs),
            agents=any(needs.agents for needs in all_needs),
            own_groups=any(needs.own_groups for needs in all_needs),
            losses=any(needs.losses for needs in all_needs),
        )

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """Those of all parts, in order."""
        return tuple(
            replace(comparison, weight=comparison.weight * weight)
            for credit, weight in self.of
            for comparison in credit.comparisons(batch)
        )

    def unused_rewards(self, batch: TransitionBatch) -> BoolArray:
        """(T,) none of the parts makes anything of the transition's own reward."""
        unused: BoolArray = np.all([unused_rewards(credit, batch) for credit, _ in self.of], axis=0)
        return unused

    def warnings(self, batch: TransitionBatch) -> tuple[str, ...]:
        """Those of all parts."""
        return tuple(
            warning for credit, _ in self.of if isinstance(credit, Warns) for warning in credit.warnings(batch)
        )
