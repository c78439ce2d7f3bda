"""What an estimator is given, and what it made, checked: comparisons of a credit assigner, or values of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spangrad.errors import BackendError, ConfigError, PluginError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.estimators import AdvantageEstimator, RememberingEstimator, ValueEstimator
from spangrad.transitions import FloatArray, IntArray, TransitionBatch, ValueTargets


@dataclass(frozen=True)
class Estimation:
    """Advantages of T transitions, and what goes with them."""

    advantages: FloatArray
    """(T,)"""
    token_advantages: tuple[FloatArray, ...] | None = None
    value_targets: ValueTargets | None = None
    memory: Mapping[str, float] = field(default_factory=dict)


def estimated(
    estimator: AdvantageEstimator, name: str, comparisons: Sequence[Comparison], memory: Mapping[str, float]
) -> Estimation:
    """The advantages of an estimator that compares, and what is remembered; nothing where it remembers nothing.

    Raises:
        PluginError: the estimator gave something other than one finite number per transition.
    """
    if isinstance(estimator, RememberingEstimator):
        advantages = estimator.advantages_recalling(comparisons, memory)
        after = dict(estimator.memory_after(comparisons, memory))
    else:
        advantages, after = estimator.advantages(comparisons), {}
    count = len(comparisons[0].returns)
    return Estimation(checked("advantage estimator", name, advantages, count), memory=after)


def estimated_from_values(
    estimator: ValueEstimator,
    name: str,
    batch: TransitionBatch,
    values: Sequence[FloatArray | None] | None,
    units: IntArray,
) -> tuple[FloatArray, Estimation]:
    """The returns and advantages of an estimator that goes by values.

    Raises:
        ConfigError: there are no values.
        BackendError: the values are not one finite number per token.
        PluginError: the estimator gave something other than one finite number per transition or token.
    """
    if values is None:
        raise ConfigError(
            f"{name} goes by values, and none were given", cure="Hand in those of the backend, from Learner.values"
        )
    made = estimator.estimates(batch, _checked_values(batch, values), units)
    advantages = checked("advantage estimator", name, made.advantages, len(batch))
    for rows in (made.token_advantages or (), made.targets.targets):
        for row in rows:
            checked("advantage estimator", name, row, len(row))
    returns = checked("advantage estimator", name, made.returns, len(batch))
    return returns, Estimation(advantages, made.token_advantages, made.targets)


def _checked_values(batch: TransitionBatch, values: Sequence[FloatArray | None]) -> Sequence[FloatArray | None]:
    """The values, if every call has one per token or none at all."""
    if len(values) != len(batch):
        raise BackendError(f"There are values of {len(values)} calls for {len(batch)} transitions")
    for transition, row in zip(batch.transitions, values, strict=True):
        if row is not None and (row.shape != (len(transition.action_ids),) or not np.isfinite(row).all()):
            raise BackendError(
                f"The values of call {transition.call_id} are not one finite number for each of its "
                f"{len(transition.action_ids)} tokens",
                cure="Go back to the last checkpoint with a smaller learning_rate of algorithm.critic",
            )
    return values


def checked(noun: str, name: str, values: FloatArray, count: int) -> FloatArray:
    """The values a plug-in gave, as float64, if they are one finite number per transition or token.

    Raises:
        PluginError: they are not.
    """
    result = np.asarray(values, dtype=np.float64)
    if result.shape != (count,):
        problem = f"gave values of shape {result.shape} for {count} transitions"
    elif not np.isfinite(result).all():
        problem = f"gave {int((~np.isfinite(result)).sum())} values that are not finite numbers"
    else:
        return result
    raise PluginError(
        f"The {noun} {name!r} {problem}",
        cure=f"This is a mistake in that {noun}; report it to its authors or choose another",
    )
