"""How much each reward counts, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spangrad.transitions._rollout import RewardRecord


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """Weights of rewards by name. Without any, every reward counts as it is; with some, each has to have its own."""

    by_name: Mapping[str, float] = field(default_factory=dict)

    def total(self, components: Mapping[str, float]) -> float:
        """The weighted sum; a name without a weight adds nothing (see `lacking`)."""
        return math.fsum(self.of(name) * value for name, value in components.items())

    def of(self, name: str) -> float:
        """The weight of a name; 0 where it lacks one."""
        return self.by_name.get(name, 0.0) if self.by_name else 1.0

    def lacking(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that should have a weight and have none, sorted."""
        return tuple(sorted(set(names) - self.by_name.keys())) if self.by_name else ()


def components_of(rewards: Iterable[RewardRecord]) -> dict[str, float]:
    """Rewards by name; those of one name add up."""
    values: dict[str, list[float]] = {}
    for reward in rewards:
        values.setdefault(reward.name, []).append(reward.value)
    return {name: math.fsum(several) for name, several in values.items()}
