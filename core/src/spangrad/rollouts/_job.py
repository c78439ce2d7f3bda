"""What the runner is asked to do, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spangrad.gateway import SamplingOverride
from spangrad.rollouts._task import Task
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions import RewardWeights, components_of


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """One rollout to run."""

    rollout_id: str
    attempt: int
    """Number of its first attempt in this process, from 1; a retry counts on from it."""
    group_id: str
    """The rollouts that are compared with each other: those of one task, sampled for the same update."""
    task: Task
    phase: str
    """train, evaluate or collect."""
    step: int | None = None
    """Training step, from 1; for an evaluation the step after which it is made; None outside training."""
    sampling: SamplingOverride | None = None
    """How the model is sampled, whatever the agent asks for."""
    lost: int = 0
    """How many attempts before were cut short with their process; they are not counted against a policy's `attempts`."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How a rollout ended."""

    job: RolloutJob
    record: RolloutRecord
    """What the store holds of its last attempt."""
    output: Any
    """What the agent returned; for a command the last JSON value or the text it printed; None when it did not end by itself."""
    rewards: tuple[RewardRecord, ...]
    """All rewards of the last attempt."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Of rewards by name."""
    unlinked: int = 0
    """How often a rule was met by something of which no call is known; it gave nothing."""

    @property
    def status(self) -> RolloutStatus:
        """How the last attempt ended."""
        return self.record.status

    @property
    def error(self) -> str:
        """What went wrong, in words; empty when nothing did."""
        return self.record.error

    @property
    def reward(self) -> float | None:
        """Its return: the weighted sum of all its rewards, of its calls too; None when it has none."""
        return self.weights.total(components_of(self.rewards)) if self.rewards else None
