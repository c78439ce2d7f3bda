"""LightningRL as a whole: transitions in; returns, advantages, token weights and the ledger out (arXiv 2508.03680)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl._grouping import Grouping
from spangrad.lightningrl._reward_size import check_sizes
from spangrad.lightningrl._weighting import Weighting
from spangrad.lightningrl.credit import CreditAssigner, rollout_returns
from spangrad.lightningrl.estimators import AdvantageEstimator
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

    @property
    def trained(self) -> BoolArray:
        """(T,) the transition takes part in the update."""
        return np.array([reason is Reason.TRAINED for reason in self.reasons], dtype=np.bool_)

    def without_update(self, reason: Reason) -> AdvantageReport:
        """The same report for a step that is not trained on after all: what would have been trained is dropped for `reason`."""
        nothing = np.zeros(len(self.batch), dtype=np.float64)
        return replace(
            self,
            advantages=nothing,
            token_weights=nothing,
            reasons=tuple(reason if old is Reason.TRAINED else old for old in self.reasons),
            metrics={**self.metrics, "trained_transitions": 0, "trained_rollouts": 0},
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


@dataclass(frozen=True)
class LightningRL:
    """Credit assigner, advantage estimator and token weighting, put together."""

    credit: CreditAssigner
    estimator: AdvantageEstimator
    weighting: Weighting = field(default_factory=Weighting)
    grouping: Grouping = field(default_factory=Grouping)

    def check(self, *, rollouts_per_task: int, estimator_levels: Collection[str] = ("transition",)) -> None:
        """Refuses a configuration that the estimator could not learn from.

        Args:
            rollouts_per_task: how many rollouts of a task will be sampled for one update.
            estimator_levels: what the backend's learner takes advantages for (`Capabilities.estimator_levels`).

        Raises:
            ConfigError: what the estimator needs is not there.
        """
        needs = self.estimator.requirements
        name = type(self.estimator).__name__
        if needs.among == "task" and rollouts_per_task < needs.min_group:
            raise ConfigError(
                f"{name} compares rollouts of one task and needs at least {needs.min_group}, "
                f"but rollouts_per_task is {rollouts_per_task}",
                cure="Raise rollouts_per_task; 8 is a good start",
            )
        if needs.level not in estimator_levels:
            raise ConfigError(
                f"{name} gives one advantage per {needs.level}, "
                f"but the backend takes them per {', '.join(sorted(estimator_levels)) or 'nothing'}",
                cure="Choose another estimator or another backend",
            )

    def compute(self, batch: TransitionBatch, *, max_sequence: int | None = None) -> AdvantageReport:
        """Returns, advantages and weights of one step's transitions.

        Args:
            batch: the transitions of all usable rollouts of the step; an empty one gives an empty report.
            max_sequence: most tokens (prompt and action together) the learner takes; longer transitions take part in the
                statistics, being real outcomes, and are left out of the update.

        Raises:
            RewardError: a reward is so large that statistics would overflow.
            PluginError: the credit assigner or the estimator gave something other than one finite number per transition.
        """
        check_sizes(batch)
        if not len(batch):
            return _empty(batch)
        comparisons = self._comparisons(batch)
        advantages = _checked("advantage estimator", self.estimator, self.estimator.advantages(comparisons), len(batch))
        reasons = _reasons(batch, comparisons, self.estimator.requirements.min_group, max_sequence)
        trained = np.array([reason is Reason.TRAINED for reason in reasons], dtype=np.bool_)
        return AdvantageReport(
            batch=batch,
            returns=comparisons[0].returns,
            advantages=np.where(trained, advantages, 0.0),
            token_weights=np.where(trained, self.weighting.token_weights(batch), 0.0),
            reasons=reasons,
            metrics=_metrics(batch, comparisons[0], advantages, reasons, self.estimator.requirements.min_group),
            warnings=_warnings(comparisons, reasons, self.estimator.requirements.min_group),
        )

    def _comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """What the credit assigner asks for, checked and regrouped."""
        made = self.credit.comparisons(batch)
        for comparison in made:
            _checked("credit assigner", self.credit, comparison.returns, len(batch))
        return self.grouping.applied(made, batch, among=self.estimator.requirements.among)


_DETAILS: Mapping[Reason, str] = {
    Reason.ZERO_VARIANCE: "all rollouts of the task had the same return",
    Reason.SINGLETON_GROUP: "too few usable rollouts of the task to compare it with",
    Reason.BATCH_FAILED: "too many rollouts of the step failed for it to be trusted",
    Reason.TOO_LONG: "prompt and action together exceed what the learner takes",
}


def _checked(noun: str, plugin: object, values: FloatArray, count: int) -> FloatArray:
    """The values a plug-in gave, as float64, if they are one finite number per transition."""
    result = np.asarray(values, dtype=np.float64)
    if result.shape != (count,):
        problem = f"gave values of shape {result.shape} for {count} transitions"
    elif not np.isfinite(result).all():
        problem = f"gave {int((~np.isfinite(result)).sum())} values that are not finite numbers"
    else:
        return result
    raise PluginError(
        f"The {noun} {type(plugin).__name__} {problem}",
        cure=f"This is a mistake in that {noun}; report it to its authors or choose another",
    )


def _empty(batch: TransitionBatch) -> AdvantageReport:
    """The report of no transitions at all."""
    nothing = np.zeros(0)
    alone = Comparison(nothing, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return AdvantageReport(batch, nothing, nothing, nothing, (), _metrics(batch, alone, nothing, (), 1))


def _reasons(
    batch: TransitionBatch, comparisons: Sequence[Comparison], min_group: int, max_sequence: int | None
) -> tuple[Reason, ...]:
    """What becomes of each transition; a lack of signal, in all its comparisons, is said before a transition's length."""
    signal = np.any([comparison.has_signal(min_group) for comparison in comparisons], axis=0)
    small = np.all([(c.group_sizes < min_group)[c.group_index] for c in comparisons], axis=0)
    reasons = []
    for transition, tells, too_few in zip(batch.transitions, signal, small, strict=True):
        if too_few:
            reasons.append(Reason.SINGLETON_GROUP)
        elif not tells:
            reasons.append(Reason.ZERO_VARIANCE)
        elif max_sequence is not None and len(transition.prompt_ids) + len(transition.action_ids) > max_sequence:
            reasons.append(Reason.TOO_LONG)
        else:
            reasons.append(Reason.TRAINED)
    return tuple(reasons)


def _metrics(
    batch: TransitionBatch,
    groups: Comparison,
    advantages: FloatArray,
    reasons: tuple[Reason, ...],
    min_group: int,
) -> dict[str, float]:
    """Counts and means of the step; means only where there is something to average."""
    trained = np.array([reason is Reason.TRAINED for reason in reasons], dtype=np.bool_)
    metrics: dict[str, float] = {
        "rollouts": len(batch.rollout_keys),
        "transitions": len(batch),
        "groups": len(groups.group_sizes),
        "zero_variance_groups": int((groups.without_variance & (groups.group_sizes >= min_group)).sum()),
        "singleton_groups": int((groups.group_sizes < min_group).sum()),
        "too_long": reasons.count(Reason.TOO_LONG),
        "trained_transitions": int(trained.sum()),
        "trained_rollouts": len(set(batch.rollout_index[trained].tolist())),
    }
    if len(batch):
        per_rollout = rollout_returns(batch)
        metrics["return_mean"] = float(per_rollout.mean())
        metrics["return_min"] = float(per_rollout.min())
        metrics["return_max"] = float(per_rollout.max())
    if trained.any():
        metrics["advantage_abs_mean"] = float(np.abs(advantages[trained]).mean())
    return metrics


def _warnings(comparisons: Sequence[Comparison], reasons: tuple[Reason, ...], min_group: int) -> tuple[str, ...]:
    """What the user should know about the step."""
    warnings = []
    sizes = comparisons[0].group_sizes
    if alone := int((sizes < min_group).sum()):
        warnings.append(
            f"{alone} of {len(sizes)} tasks have fewer than {min_group} usable rollouts; nothing was learnt from them"
        )
    if long := reasons.count(Reason.TOO_LONG):
        warnings.append(f"{long} of {len(reasons)} calls are longer than the learner takes and were left out")
    if all(comparison.without_variance.all() for comparison in comparisons):
        warnings.append("All rollouts of each task have the same return: there is nothing to learn from this step")
    return tuple(warnings)
