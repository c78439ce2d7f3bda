"""One run of an agent on a task, and the rewards somebody gave it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RULE_SOURCE: Final = "rule "
"""Begins the source of a reward that a rule gave; the rule's name follows."""
LENGTH_SOURCE: Final = "length"
"""Source of a reward for the tokens a rollout took."""


class RolloutStatus(StrEnum):
    """Where a rollout's attempt stands, or how it ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """The agent ended by itself and has a reward."""
    NO_REWARD = "no_reward"
    """The agent ended by itself, but nobody gave a usable reward."""
    NO_CALL = "no_call"
    """The agent ended by itself, and no call of it was answered with a token: it made none, or none that was."""
    FAILED = "failed"
    """The agent raised, or its command exited with a status other than 0."""
    TIMED_OUT = "timed_out"
    INFRASTRUCTURE = "infrastructure"
    """Something the agent depends on broke: it raised `InfrastructureError`, or failed when the model could not answer."""
    LOST = "lost"
    """The process running it went away."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One attempt of one rollout."""

    rollout_id: str
    attempt: int
    task_id: str
    group_id: str
    phase: str
    """train, evaluate or collect."""
    step: int | None
    """Training step, from 1; for an evaluation the step after which it was made (0: before training)."""
    status: RolloutStatus
    error: str
    """What went wrong, in words; empty when nothing did."""
    output: str
    """JSON of what the agent returned; empty when nothing JSON-able was returned."""
    started_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class RewardRecord:
    """One reward that somebody gave."""

    rollout_id: str
    attempt: int
    call_id: str | None
    """The call it rewards; None rewards the rollout."""
    name: str
    """Which component it is; the rollout's reward is the sum of its components, each times its weight."""
    value: float
    source: str
    """Who gave it: return_value, reward_function, evaluator, check, judge, scope, http, length, failure policy or "rule NAME"."""
    at: float

    @property
    def derived(self) -> bool:
        """It follows from how the rollout went, not from what came of it, and so stands in for no other reward."""
        return self.source.startswith(RULE_SOURCE) or self.source == LENGTH_SOURCE
