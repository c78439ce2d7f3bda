"""What LightningRL made of a batch, and its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from spangrad.transitions import (
    BoolArray,
    FloatArray,
    LedgerEntry,
    Reason,
    TransitionBatch,
    ValueTargets,
    entry_of,
)


@dataclass(frozen=True)
class AdvantageReport:
    """What LightningRL made of a batch. All arrays are per transition (T,), in the batch's order."""

    batch: TransitionBatch
    returns: FloatArray
    advantages: FloatArray
    """0 for what is left out. Where tokens have their own, the mean of a call's."""
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
    token_advantages: tuple[FloatArray, ...] | None = None
    """(T,) of (A,) one per sampled token, from estimators of the level "token"; 0 for what is left out."""
    value_targets: ValueTargets | None = None
    """What the learnt values should have been, from estimators that go by them; nothing is learnt where a transition is left out."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """What it remembers once the step is done: to be given to the next `LightningRL.compute`, and kept with checkpoints."""

    @property
    def trained(self) -> BoolArray:
        """(T,) the transition takes part in the update."""
        return np.array([reason is Reason.TRAINED for reason in self.reasons], dtype=np.bool_)

    def leaving_out(self, dropped: BoolArray, reason: Reason) -> AdvantageReport:
        """The same report, of whose trained transitions those in `dropped` (T,) are left out for `reason`."""
        dropped = dropped & self.trained
        per_token = self.token_advantages
        if per_token is not None:
            per_token = tuple(row * (not left) for row, left in zip(per_token, dropped, strict=True))
        kept = self.trained & ~dropped
        return replace(
            self,
            advantages=np.where(dropped, 0.0, self.advantages),
            token_weights=np.where(dropped, 0.0, self.token_weights),
            token_advantages=per_token,
            reasons=tuple(reason if left else old for old, left in zip(self.reasons, dropped, strict=True)),
            metrics={
                **self.metrics,
                "trained_transitions": int(kept.sum()),
                "trained_rollouts": len(set(self.batch.rollout_index[kept].tolist())) if len(kept) else 0,
            },
        )

    def without_update(self, reason: Reason) -> AdvantageReport:
        """The same report for a step that is not trained on after all: what would have been trained is dropped for `reason`, and
        nothing of the step is remembered.
        """
        left = self.leaving_out(self.trained, reason)
        kept = {name: value for name, value in left.metrics.items() if not name.startswith(_MEMORY)}
        return replace(left, metrics={**kept, **memory_metrics(self.recalled)}, memory=self.recalled)

    def ledger(self, step: int | None) -> tuple[LedgerEntry, ...]:
        """One entry per transition, for the training step `step`. Write it once the update has been made."""
        return tuple(
            entry_of(
                transition,
                step,
                reason,
                self._detail(position),
                episode_return=float(episode_return),
                advantage=float(advantage),
            )
            for position, (transition, reason, episode_return, advantage) in enumerate(
                zip(self.batch.transitions, self.reasons, self.returns, self.advantages, strict=True)
            )
        )

    def _detail(self, position: int) -> str:
        """What there is to say beside a transition's reason."""
        reason, values = self.reasons[position], self.value_targets
        if reason is Reason.TRAINED and values is not None:
            said = f"value before the call {values.before[position][0]:.4g}"
            return said if self.token_advantages is None else f"{said}; {_of_tokens(self.token_advantages[position])}"
        return _DETAILS.get(reason, "")


def _of_tokens(advantages: FloatArray) -> str:
    """What the one advantage of the row stands for."""
    low, high = advantages.min(), advantages.max()
    return f"the advantage is the mean of its {len(advantages)} tokens', from {low:.4g} to {high:.4g}"


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
