"""What LightningRL made of a batch, and its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from spangrad.transitions import BoolArray, FloatArray, LedgerEntry, Reason, TransitionBatch, fate_of


@dataclass(frozen=True)
class AdvantageReport:
    """What LightningRL made of a batch. All arrays are per transition (T,), in the batch's order."""

    batch: TransitionBatch
    returns: FloatArray
    advantages: FloatArray
    """0 for what is left out."""
    token_weights: FloatArray
    """Weight of each token of the action; 0 for what is left out."""
    reasons: tuple[Reason, ...]
    """`Reason.TRAINED`, or why the transition is left out of the update."""
    metrics: Mapping[str, float]
    """Counts and means under stable names, for the step's metrics."""
    warnings: tuple[str, ...] = ()
    """What the user should know, as full sentences."""
    recalled: Mapping[str, float] = field(default_factory=dict)
    """What the estimator remembered of earlier steps."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """What it remembers once the step is done: to be given to the next `LightningRL.compute`, and kept with checkpoints."""

    @property
    def trained(self) -> BoolArray:
        """(T,) the transition takes part in the update."""
        return np.array([reason is Reason.TRAINED for reason in self.reasons], dtype=np.bool_)

    def without_update(self, reason: Reason) -> AdvantageReport:
        """The same report for a step that is not trained on after all: what would have been trained is dropped for `reason`, and
        nothing of the step is remembered.
        """
        nothing = np.zeros(len(self.batch), dtype=np.float64)
        kept = {name: value for name, value in self.metrics.items() if not name.startswith(_MEMORY)}
        return replace(
            self,
            advantages=nothing,
            token_weights=nothing,
            reasons=tuple(reason if old is Reason.TRAINED else old for old in self.reasons),
            metrics={**kept, **memory_metrics(self.recalled), "trained_transitions": 0, "trained_rollouts": 0},
            memory=self.recalled,
        )

    def ledger(self, step: int | None) -> tuple[LedgerEntry, ...]:
        """One entry per transition, for the training step `step`. Write it once the update has been made."""
        return tuple(
            LedgerEntry(
                call_id=transition.call_id,
                choice=transition.choice,
                rollout_id=transition.rollout_id,
                attempt=transition.attempt,
                step=step,
                fate=fate_of(reason),
                reason=reason,
                detail=_DETAILS.get(reason, ""),
                tokens=len(transition.action_ids),
                reward=transition.reward,
                episode_return=float(episode_return),
                advantage=float(advantage),
            )
            for transition, reason, episode_return, advantage in zip(
                self.batch.transitions, self.reasons, self.returns, self.advantages, strict=True
            )
        )


def memory_metrics(memory: Mapping[str, float]) -> dict[str, float]:
    """What is remembered, as it stands among the metrics."""
    return {f"{_MEMORY}{name}": value for name, value in memory.items()}


_MEMORY: Final = "memory/"
_DETAILS: Mapping[Reason, str] = {
    Reason.ZERO_VARIANCE: "all rollouts of the task had the same return",
    Reason.SINGLETON_GROUP: "too few usable rollouts of the task to compare it with",
    Reason.NO_CREDIT: "the credit assigner compares it with no other call",
    Reason.BATCH_FAILED: "too many rollouts of the step failed for it to be trusted",
    Reason.STALE: "answered by a policy too many versions older than the one updated",
    Reason.TOO_LONG: "prompt and action together exceed what the learner takes",
}
