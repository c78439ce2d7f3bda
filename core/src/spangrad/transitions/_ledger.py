"""What became of every call, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spangrad.transitions._transition import Transition


class Fate(StrEnum):
    """What became of a call."""

    TRAINED = "trained"
    """Its tokens took part in an update."""
    DROPPED = "dropped"
    """It could have been trained, but was left out; the reason says why."""
    EXCLUDED = "excluded"
    """It is no transition at all; the reason says why."""


class Reason(StrEnum):
    """Why a call was trained or left out. The values are stable: they appear in the store, in metrics and in `--json`."""

    TRAINED = "trained"
    NOT_TRAINED_POLICY = "not_trained_policy"
    """Answered by a frozen or external model."""
    NOT_TRAINED_AGENT = "not_trained_agent"
    """Made by an agent that is not among those being trained."""
    CALL_FAILED = "call_failed"
    UNDELIVERED = "undelivered"
    SUPERSEDED = "superseded"
    """A retry of the same request answered the agent instead."""
    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    EMPTY_ACTION = "empty_action"
    ORPHAN = "orphan"
    """Named no rollout."""
    LATE = "late"
    """Made after its attempt had been closed."""
    OTHER_ATTEMPT = "other_attempt"
    """Belongs to an attempt of the rollout that was given up."""
    ROLLOUT_FAILED = "rollout_failed"
    ROLLOUT_UNFINISHED = "rollout_unfinished"
    NO_REWARD = "no_reward"
    ZERO_VARIANCE = "zero_variance"
    """All rollouts of the group had the same return, so it carries no signal."""
    SINGLETON_GROUP = "singleton_group"
    """The only usable rollout of its group: there is nothing to compare it with."""
    NO_CREDIT = "no_credit"
    """The credit assigner compares the call with none."""
    TOO_LONG = "too_long"
    """Prompt and action together exceed what the learner takes."""
    STALE = "stale"
    """Answered by a policy too many versions older than the one updated."""
    BATCH_FAILED = "batch_failed"
    """Too many rollouts of the step failed for it to be trusted."""
    STEP_GIVEN_UP = "step_given_up"
    """The step ended by an error before it was trained on; a run that goes on does it again."""
    EVALUATION = "evaluation"
    """Made while measuring, not while training."""
    NOT_IN_TRAINING = "not_in_training"
    """Recorded outside a training run."""


_EXCLUDED: Final = frozenset(
    {
        Reason.NOT_TRAINED_POLICY,
        Reason.NOT_TRAINED_AGENT,
        Reason.CALL_FAILED,
        Reason.UNDELIVERED,
        Reason.SUPERSEDED,
        Reason.NO_TOKEN_IDS,
        Reason.NO_LOGPROBS,
        Reason.EMPTY_ACTION,
        Reason.ORPHAN,
        Reason.LATE,
        Reason.EVALUATION,
    }
)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row of the ledger: a call's choice, what became of it, and the numbers it was trained with."""

    call_id: str
    choice: int
    rollout_id: str | None
    attempt: int
    step: int | None
    """Training step, from 1; None outside training."""
    fate: Fate
    reason: Reason
    detail: str = ""
    """The reason in words, with its particulars (an error message, the ids of the superseding call)."""
    tokens: int = 0
    """Sampled tokens of the choice."""
    reward: float | None = None
    """The call's own reward."""
    episode_return: float | None = None
    """The return the credit assigner gave this transition."""
    advantage: float | None = None


def entry_of(
    transition: Transition,
    step: int | None,
    reason: Reason,
    detail: str,
    *,
    episode_return: float | None = None,
    advantage: float | None = None,
) -> LedgerEntry:
    """The ledger's row of a transition; without numbers where none are known. Pure."""
    return LedgerEntry(
        call_id=transition.call_id,
        choice=transition.choice,
        rollout_id=transition.rollout_id,
        attempt=transition.attempt,
        step=step,
        fate=fate_of(reason),
        reason=reason,
        detail=detail,
        tokens=len(transition.action_ids),
        reward=transition.reward,
        episode_return=episode_return,
        advantage=advantage,
    )


def fate_of(reason: Reason) -> Fate:
    """Trained, dropped (it could have been trained) or excluded (it is no transition to train on)."""
    if reason is Reason.TRAINED:
        return Fate.TRAINED
    return Fate.EXCLUDED if reason in _EXCLUDED else Fate.DROPPED
