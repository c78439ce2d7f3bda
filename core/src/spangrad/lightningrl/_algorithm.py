"""LightningRL as a whole: transitions in; returns, advantages, token weights and the ledger out (arXiv 2508.03680)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spangrad.lightningrl._builtins import name_of
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl._compatibility import check_compatible
from spangrad.lightningrl._components import component_batches, component_warnings
from spangrad.lightningrl._estimation import Estimation, checked, estimated, estimated_from_values
from spangrad.lightningrl._grouping import Grouping
from spangrad.lightningrl._report import AdvantageReport, memory_metrics
from spangrad.lightningrl._reward_size import check_sizes
from spangrad.lightningrl._step_figures import step_metrics, step_warnings
from spangrad.lightningrl._weighting import Weighting
from spangrad.lightningrl.credit import CreditAssigner, among_rollouts, credit_warnings, needs_of
from spangrad.lightningrl.estimators import Estimator, Requirements, ValueEstimator
from spangrad.transitions import BoolArray, FloatArray, Reason, RewardWeights, TransitionBatch


@dataclass(frozen=True)
class LightningRL:
    """Credit assigner, advantage estimator and token weighting, put together."""

    credit: CreditAssigner
    estimator: Estimator
    weighting: Weighting = field(default_factory=Weighting)
    grouping: Grouping = field(default_factory=Grouping)
    component_weights: RewardWeights = field(default_factory=RewardWeights)
    """Of rewards by name, for an estimator that compares each by itself; others get the sum, which is weighted already."""
    names: tuple[str, str] | None = None
    """What the configuration calls assigner and estimator, for messages; None where nothing else than their classes tells."""

    def check(
        self,
        *,
        rollouts_per_task: int,
        estimator_levels: Collection[str] = ("transition",),
        values: bool = False,
    ) -> None:
        """Refuses a configuration that the estimator could not learn from, or in which a setting would do nothing.

        Args:
            rollouts_per_task: how many rollouts of a task will be sampled for one update.
            estimator_levels: what the backend's learner takes advantages for (`Capabilities.estimator_levels`).
            values: whether the backend has a learnt value (`Capabilities.values`).

        Raises:
            ConfigError: what the estimator needs is not there, or it would undo another setting.
        """
        check_compatible(
            self.credit,
            self.estimator,
            self.grouping,
            names=self._names,
            rollouts_per_task=rollouts_per_task,
            estimator_levels=estimator_levels,
            values=values,
        )

    def compute(
        self,
        batch: TransitionBatch,
        *,
        max_sequence: int | None = None,
        values: Sequence[FloatArray | None] | None = None,
        memory: Mapping[str, float] | None = None,
    ) -> AdvantageReport:
        """Returns, advantages and weights of one step's transitions.

        Args:
            batch: the transitions of all usable rollouts of the step; an empty one gives an empty report.
            max_sequence: most tokens (prompt and action together) the learner takes; longer transitions take part in the
                statistics, being real outcomes, and are left out of the update.
            values: (T,) of (A,) the value before each sampled token, from `Learner.values`; None for a transition that the learner
                does not take. Only for estimators that go by values.
            memory: `AdvantageReport.memory` of the step before, for estimators that remember.

        Raises:
            RewardError: a reward is so large that statistics would overflow, or of a kind that the estimator cannot take.
            PluginError: the credit assigner or the estimator gave something other than one finite number per transition.
            ConfigError: the credit assigner needs what the calls of the batch do not have, such as scores; or there are no values
                for an estimator that goes by them.
            BackendError: the values are not one finite number per token.
        """
        check_sizes(batch)
        memory = dict(memory or {})
        if not len(batch):
            return _empty(batch, memory)
        returns, comparisons, made = self._estimated(batch, values, memory)
        reasons = _reasons(batch, comparisons, self.estimator.requirements, max_sequence)
        trained = np.array([reason is Reason.TRAINED for reason in reasons], dtype=np.bool_)
        return AdvantageReport(
            batch=batch,
            returns=returns,
            advantages=np.where(trained, made.advantages, 0.0),
            token_weights=np.where(trained, self._token_weights(batch), 0.0),
            reasons=reasons,
            metrics=step_metrics(batch, comparisons[0], returns, made.advantages, reasons)
            | memory_metrics(made.memory),
            warnings=self._warnings(batch, comparisons[0], reasons),
            recalled=memory,
            token_advantages=_where(trained, made.token_advantages),
            value_targets=made.value_targets,
            memory=made.memory,
        )

    @property
    def _names(self) -> tuple[str, str]:
        return self.names or (name_of(self.credit), name_of(self.estimator))

    def _token_weights(self, batch: TransitionBatch) -> FloatArray:
        """(T,) each policy has a loss of its own, and what weighs the same does so within it."""
        weights = np.zeros(len(batch))
        for policy in np.unique(batch.policies):
            own = batch.policies == policy
            weights[own] = self.weighting.token_weights(batch.select(own))
        return weights

    def _estimated(
        self, batch: TransitionBatch, values: Sequence[FloatArray | None] | None, memory: Mapping[str, float]
    ) -> tuple[FloatArray, tuple[Comparison, ...], Estimation]:
        """(T,) the returns for the ledger, what is compared with what, and the advantages."""
        estimator = self.estimator
        if isinstance(estimator, ValueEstimator):
            returns, made = estimated_from_values(estimator, self._names[1], batch, values, self.grouping.units(batch))
            return returns, (among_rollouts(batch, returns),), made
        returns, comparisons = self._comparisons(batch)
        return returns, comparisons, estimated(estimator, self._names[1], comparisons, memory)

    def _warnings(self, batch: TransitionBatch, groups: Comparison, reasons: Sequence[Reason]) -> tuple[str, ...]:
        """What the user should know about the step."""
        needs, own_groups = self.estimator.requirements, needs_of(self.credit).own_groups
        return (
            *step_warnings(batch, groups, reasons, needs.min_group, own_groups=own_groups),
            *credit_warnings(self.credit, batch, name=self._names[0]),
            *(component_warnings(batch) if needs.components else ()),
        )

    def _comparisons(self, batch: TransitionBatch) -> tuple[FloatArray, tuple[Comparison, ...]]:
        """(T,) the returns for the ledger, and what the credit assigner asks for, checked and regrouped."""
        needs = self.estimator.requirements
        made = self._credited(batch)
        returns = made[0].returns
        if needs.components:
            made = tuple(
                replace(comparison, weight=comparison.weight * weight)
                for weight, part in component_batches(batch, self.component_weights)
                for comparison in self._credited(part)
            )
        return returns, self.grouping.applied(made, batch, among=needs.among)

    def _credited(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        made = self.credit.comparisons(batch)
        for comparison in made:
            checked("credit assigner", self._names[0], comparison.returns, len(batch))
        return made


def _where(trained: BoolArray, rows: tuple[FloatArray, ...] | None) -> tuple[FloatArray, ...] | None:
    """The rows of what is trained, zeros for the rest; None where there are none."""
    return None if rows is None else tuple(row * kept for row, kept in zip(rows, trained, strict=True))


def _empty(batch: TransitionBatch, memory: Mapping[str, float]) -> AdvantageReport:
    """The report of no transitions at all."""
    nothing = np.zeros(0)
    alone = Comparison(nothing, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    metrics = step_metrics(batch, alone, nothing, nothing, ())
    return AdvantageReport(batch, nothing, nothing, nothing, (), metrics, recalled=memory, memory=memory)


def _reasons(
    batch: TransitionBatch, comparisons: Sequence[Comparison], needs: Requirements, max_sequence: int | None
) -> tuple[Reason, ...]:
    """What becomes of each transition; a lack of signal, in all its comparisons, is said before a transition's length."""
    credited = [comparison.compared & (np.asarray(comparison.weight) != 0) for comparison in comparisons]
    small = [
        ~has | (c.group_sizes < needs.min_group)[c.group_index] for has, c in zip(credited, comparisons, strict=True)
    ]
    tells = [
        ~few & (needs.memory | needs.values | c.has_signal(needs.min_group))
        for few, c in zip(small, comparisons, strict=True)
    ]
    lengthy = np.zeros(len(batch), dtype=np.bool_)
    if max_sequence is not None:
        lengthy = batch.prompt_lengths + batch.action_lengths > max_sequence
    faults = (
        (Reason.NO_CREDIT, ~np.any(credited, axis=0)),
        (Reason.SINGLETON_GROUP, np.all(small, axis=0)),
        (Reason.ZERO_VARIANCE, ~np.any(tells, axis=0)),
        (Reason.TOO_LONG, lengthy),
    )
    names = [*(reason for reason, _ in faults), Reason.TRAINED]
    found = np.argmax([*(fault for _, fault in faults), np.ones(len(batch), dtype=np.bool_)], axis=0)
    return tuple(names[at] for at in found.tolist())
