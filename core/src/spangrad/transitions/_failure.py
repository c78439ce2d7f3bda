"""Kinds of rollouts that did not end as they should, what may be done about each, and what was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from spangrad.transitions._rollout import RewardRecord, RolloutRecord, RolloutStatus

FAILURE_REWARD: Final = "failure"
"""Name of the reward that a penalised rollout gets."""
FAILURE_SOURCE: Final = "failure policy"
"""Who gives it."""


class FailureKind(StrEnum):
    """Why a rollout is not one that succeeded. The values are keys of a train.toml's [failures]."""

    FAILED = "failed"
    """The agent raised, or its command exited with a status other than 0."""
    TIMED_OUT = "timed_out"
    INFRASTRUCTURE = "infrastructure"
    """Something the agent depends on broke, not the agent."""
    EMPTY = "empty"
    """The agent ended by itself, and not one token was sampled for it."""
    UNREWARDED = "unrewarded"
    """The agent ended by itself, and nobody gave a usable reward."""


class Treatment(StrEnum):
    """What is done about a failure."""

    DROP = "drop"
    """It is left out: of the update and of the statistics of its group."""
    RETRY = "retry"
    """The rollout is tried again, and dropped when the last attempt fails too."""
    PENALISE = "penalise"
    """It gets a reward, beside those it was given on its way, and is trained on."""
    KEEP = "keep"
    """What it was rewarded with on its way counts, and it is trained on; dropped when that is nothing."""


_KINDS: Final[Mapping[RolloutStatus, FailureKind]] = {
    RolloutStatus.FAILED: FailureKind.FAILED,
    RolloutStatus.TIMED_OUT: FailureKind.TIMED_OUT,
    RolloutStatus.INFRASTRUCTURE: FailureKind.INFRASTRUCTURE,
    RolloutStatus.LOST: FailureKind.INFRASTRUCTURE,
    RolloutStatus.NO_CALL: FailureKind.EMPTY,
    RolloutStatus.NO_REWARD: FailureKind.UNREWARDED,
}
_WORDS: Final[Mapping[RolloutStatus, str]] = {
    RolloutStatus.FAILED: "the agent failed",
    RolloutStatus.TIMED_OUT: "the rollout ran into its time limit",
    RolloutStatus.INFRASTRUCTURE: "what the agent depends on broke",
    RolloutStatus.LOST: "the process that ran the rollout went away",
    RolloutStatus.NO_CALL: "no call of the agent gave a token",
    RolloutStatus.NO_REWARD: "nobody gave the rollout a usable reward",
}


def kind_of(status: RolloutStatus) -> FailureKind | None:
    """The kind of failure a status stands for; None for a rollout that succeeded, or has not ended."""
    return _KINDS.get(status)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What is done about one kind of failure."""

    treatment: Treatment = Treatment.DROP
    reward: float = 0.0
    """For PENALISE: the reward."""
    attempts: int = 1
    """For RETRY: attempts at a rollout in all; those that were lost with their process do not count."""


_DROP: Final = FailurePolicy()


@dataclass(frozen=True, slots=True)
class FailurePolicies:
    """What is done about failures, by kind; a kind that is not named is dropped."""

    by_kind: Mapping[FailureKind, FailurePolicy] = field(default_factory=dict)

    def of(self, status: RolloutStatus) -> FailurePolicy:
        """The policy for rollouts that ended like this; that of a success drops nothing, since there is nothing to treat."""
        kind = kind_of(status)
        return _DROP if kind is None else self.by_kind.get(kind, _DROP)

    def retries(self, record: RolloutRecord, *, lost: int) -> bool:
        """Whether there is to be another attempt.

        While measuring, only what broke through no fault of the agent is tried again: the agent's own failures are what is measured.

        Args:
            record: the attempt that ended.
            lost: how many attempts up to it were lost with their process.
        """
        kind, policy = kind_of(record.status), self.of(record.status)
        if record.phase == "evaluate" and kind is not FailureKind.INFRASTRUCTURE:
            return False
        return policy.treatment is Treatment.RETRY and record.attempt - lost < policy.attempts

    def penalty(self, record: RolloutRecord, at: float) -> RewardRecord | None:
        """The reward of an attempt that has just ended, if it is to be penalised.

        One that was cut short with its whole run is not: it will be run again.
        """
        policy = self.of(record.status)
        if (
            policy.treatment is not Treatment.PENALISE
            or record.phase == "evaluate"
            or record.status is RolloutStatus.LOST
        ):
            return None
        return RewardRecord(record.rollout_id, record.attempt, None, FAILURE_REWARD, policy.reward, FAILURE_SOURCE, at)

    @property
    def treatments(self) -> dict[FailureKind, Treatment]:
        """What is done about each kind that is named."""
        return {kind: policy.treatment for kind, policy in self.by_kind.items()}


class Done(StrEnum):
    """What was done about a rollout that failed, in the words of the metrics."""

    DROPPED = "dropped"
    PENALISED = "penalised"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Handling:
    """What was done about a rollout that failed."""

    kind: FailureKind
    done: Done
    words: str
    """For the ledger."""


def handling(
    rollout: RolloutRecord, rewards: Iterable[RewardRecord], treatments: Mapping[FailureKind, Treatment]
) -> Handling | None:
    """What is done about a rollout, so far as it and its rewards tell; None where nothing failed. Pure.

    Args:
        rollout: its last attempt.
        rewards: of that attempt.
        treatments: by kind; a kind that is not named is dropped.
    """
    kind = kind_of(rollout.status)
    if kind is None:
        return None
    # A lost one is run again when its run goes on, whatever the policy.
    lost, said = rollout.status is RolloutStatus.LOST, _WORDS[rollout.status]
    treatment = Treatment.DROP if lost else treatments.get(kind, Treatment.DROP)
    why = f"{said}: {rollout.error}" if rollout.error else said
    if treatment is Treatment.PENALISE and any(reward.source == FAILURE_SOURCE for reward in rewards):
        return Handling(kind, Done.PENALISED, f"penalised: {why}")
    if treatment is Treatment.KEEP:
        if any(not reward.derived for reward in rewards):
            return Handling(kind, Done.KEPT, f"kept with what it was given on its way: {why}")
        return Handling(kind, Done.DROPPED, f"not kept, since it was given nothing on its way: {why}")
    if treatment is Treatment.RETRY and rollout.attempt > 1:
        return Handling(kind, Done.DROPPED, f"given up after attempt {rollout.attempt}: {why}")
    return Handling(kind, Done.DROPPED, why)
