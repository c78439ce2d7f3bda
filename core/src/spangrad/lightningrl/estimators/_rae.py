"""A baseline for each agent, remembered from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators._estimator import Requirements
from spangrad.transitions import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class RAE:
    """A = G - b, b being the moving average of the agent's returns (role-conditioned advantages, SPIRAL, arXiv 2506.24119).

    b is that before the step, so it depends on none of the returns it is subtracted from, and one rollout of a task is enough. It
    then moves by b <- alpha * b + (1 - alpha) * R once for each rollout in which the agent was called. SPIRAL goes through
    the rollouts of a step one after the other; here all of a step meet the same b, and move it together as many
    times by their mean: b <- alpha^n * b + (1 - alpha^n) * mean(R), whatever their order. Tasks share the agent's
    baseline as the plays of one game do in SPIRAL.
    """

    alpha: float = 0.95
    """How much of the baseline stays at each rollout, from 0 to below 1."""
    initial: float = 0.0
    """The baseline of an agent that has not been called before."""
    requirements: ClassVar[Requirements] = Requirements(among="agent", memory=True)

    def __post_init__(self) -> None:
        if type(self.alpha) not in {int, float} or not 0 <= self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha!r}", cure="Give a number from 0 to below 1, such as 0.95")
        if type(self.initial) not in {int, float} or not isfinite(self.initial):
            raise ConfigError(
                f"initial is {self.initial!r}", cure="Give a number, such as the mean reward to begin with"
            )

    def advantages(self, comparisons: Sequence[Comparison]) -> FloatArray:
        """(T,) returns less `initial`: those of a first step."""
        return self.advantages_recalling(comparisons, {})

    def advantages_recalling(self, comparisons: Sequence[Comparison], memory: Mapping[str, float]) -> FloatArray:
        """(T,) returns less the baseline of their agent; 0 for what a credit assigner compares with none."""
        total = np.zeros(len(comparisons[0].returns), dtype=np.float64)
        for number, comparison in enumerate(comparisons):
            baselines = np.zeros(len(total), dtype=np.float64)
            for name, members in _groups(comparison):
                baselines[members] = memory.get(_key(number, name), self.initial)
            total += comparison.weight * np.where(comparison.compared, comparison.returns - baselines, 0.0)
        return total

    def memory_after(self, comparisons: Sequence[Comparison], memory: Mapping[str, float]) -> Mapping[str, float]:
        """The baselines after the step, by number of the comparison and agent: "0/writer"."""
        after = dict(memory)
        for number, comparison in enumerate(comparisons):
            for name, members in _groups(comparison):
                units = np.unique(comparison.unit_index[members])
                kept = self.alpha ** len(units)
                mean = float(comparison.unit_values[units].mean())
                key = _key(number, name)
                after[key] = kept * memory.get(key, self.initial) + (1 - kept) * mean
        return after


def _key(number: int, name: str) -> str:
    return f"{number}/{name}"


def _groups(comparison: Comparison) -> Iterator[tuple[str, IntArray]]:
    """Each group's name and the positions of its transitions; all are one group where there are no names."""
    names = comparison.names or ("",) * len(comparison.returns)
    positions: dict[str, list[int]] = {}
    for position in np.flatnonzero(comparison.compared).tolist():
        positions.setdefault(names[position], []).append(position)
    for name, members in positions.items():
        yield name, np.array(members, dtype=np.int64)
