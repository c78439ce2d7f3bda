"""What there is to say about a step: figures for the metrics, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl._grouping import UNNAMED, agent_names
from spangrad.lightningrl.credit import rollout_returns
from spangrad.transitions import FloatArray, Reason, TransitionBatch


def step_metrics(
    batch: TransitionBatch,
    groups: Comparison,
    returns: FloatArray,
    advantages: FloatArray,
    reasons: Sequence[Reason],
) -> dict[str, float]:
    """Counts and means of the step; means only where there is something to average.

    Args:
        batch: the transitions.
        groups: whose groups are counted.
        returns: (T,) as the ledger shows them.
        advantages: (T,) as the estimator gave them.
        reasons: (T,)
    """
    trained = np.array([reason is Reason.TRAINED for reason in reasons], dtype=np.bool_)
    metrics: dict[str, float] = {
        "rollouts": len(batch.rollout_keys),
        "transitions": len(batch),
        "groups": int(groups.real_groups.sum()),
        "zero_variance_groups": _groups_of_only(Reason.ZERO_VARIANCE, groups, reasons),
        "singleton_groups": _groups_of_only(Reason.SINGLETON_GROUP, groups, reasons),
        "too_long": list(reasons).count(Reason.TOO_LONG),
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
    of_trained = np.where(trained, advantages, np.nan)
    agents, policies = np.array(agent_names(batch)), batch.policies
    if set(agents.tolist()) != {UNNAMED}:
        metrics |= _part_metrics("agent", agents, batch, returns, of_trained)
    if len(set(policies.tolist())) > 1:  # else the step's own figures say it all
        metrics |= _part_metrics("policy", policies, batch, returns, of_trained)
    return metrics


def _groups_of_only(reason: Reason, groups: Comparison, reasons: Sequence[Reason]) -> int:
    """How many groups have all their transitions left out for this reason."""
    other = np.array([found is not reason for found in reasons], dtype=np.bool_)
    only = groups.real_groups.copy()
    only[groups.group_index[other & groups.compared]] = False
    return int(only.sum())


def _part_metrics(
    kind: str, names: NDArray[np.str_], batch: TransitionBatch, returns: FloatArray, advantages: FloatArray
) -> Iterator[tuple[str, float]]:
    """Returns and advantages of each agent or each policy.

    A return is the mean of what the calls of a rollout that are of this agent or policy earned, and every rollout weighs the
    same; an advantage is that of a trained call (the others' are NaN).
    """
    for name in sorted(set(names.tolist())):
        own = names == name
        rollouts = batch.rollout_index[own]
        counts = np.bincount(rollouts)
        per_rollout = np.bincount(rollouts, weights=returns[own])[counts > 0] / counts[counts > 0]
        yield f"{kind}/{name}/transitions", int(own.sum())
        yield f"{kind}/{name}/rollouts", len(per_rollout)
        yield f"{kind}/{name}/return_mean", float(per_rollout.mean())
        if len(per_rollout) > 1:
            yield f"{kind}/{name}/return_std", float(per_rollout.std(ddof=1))
        trained = advantages[own & ~np.isnan(advantages)]
        yield f"{kind}/{name}/trained_transitions", len(trained)
        if len(trained):
            yield f"{kind}/{name}/advantage_mean", float(trained.mean())
            yield f"{kind}/{name}/advantage_abs_mean", float(np.abs(trained).mean())


def step_warnings(
    batch: TransitionBatch, groups: Comparison, reasons: Sequence[Reason], min_group: int, *, own_groups: bool
) -> tuple[str, ...]:
    """What the user should know about the step; that states are rarely visited twice (`own_groups`) is no news."""
    warnings = []
    sizes = groups.group_sizes[groups.real_groups]
    whole = len(sizes) == len(batch.group_keys)
    if (alone := int((sizes < min_group).sum())) and (whole or not own_groups):
        warnings.append(
            f"{alone} of {len(sizes)} {'tasks have' if whole else 'groups of calls have'} fewer than {min_group} "
            f"{'usable rollouts' if whole else 'members'}; nothing was learnt from them"
        )
    if long := list(reasons).count(Reason.TOO_LONG):
        warnings.append(f"{long} of {len(reasons)} calls are longer than the learner takes and were left out")
    if Reason.ZERO_VARIANCE in reasons and set(reasons) <= {Reason.ZERO_VARIANCE, Reason.NO_CREDIT}:
        warnings.append("All rollouts of each task have the same return: there is nothing to learn from this step")
    return tuple(warnings)
