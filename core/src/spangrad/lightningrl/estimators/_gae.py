"""Generalised advantage estimation, over whole calls or over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._options import check_gamma
from spangrad.lightningrl.credit._steps import rollout_steps
from spangrad.lightningrl.estimators._estimator import Requirements, check_eps
from spangrad.lightningrl.estimators._value_estimator import ValueEstimates
from spangrad.lightningrl.estimators._whitening import whitened
from spangrad.transitions import FloatArray, IntArray, TransitionBatch, ValueTargets

Level = Literal["transition", "token"]
Values = Sequence[FloatArray | None]


@dataclass(frozen=True, slots=True)
class GAE:
    """A_k = sum over l of (gamma lam)^l delta_(k+l), delta_k = r_k + gamma V_(k+1) - V_k (arXiv 1506.02438, equations 11, 16).

    With the level "transition" a whole call is one action and V is the value before its first token, as in Turn-PPO (arXiv
    2512.17008; known to us from summaries). With "token" every sampled token is one (PPO, arXiv 1707.06347, as language models use it): the token after a call's last
    one is the first of the next step's call, whatever prompt lies between. A call's reward is that of its last token. After the
    deepest step comes the rollout's reward and nothing else: the rollout has ended.

    Calls side by side (a step of several, as for the credit assigner `discounted`) each have their own reward and their common
    future ahead. The step before sees what they are worth together, the future counted once: the sum of their values less
    all but one share of the future. So lam = 1 gives the rewards to come less the value. A step that is not in the batch discounts
    all the same. A call without a known value is taken at what it came to: advantage 0.
    """

    level: Level = "transition"
    """What one advantage belongs to."""
    gamma: float | None = None
    """Discount per action, from 0 to 1; if not given 0.99 for "transition" (the paper's) and 1 for "token", where a discount would
    punish long answers."""
    lam: float | None = None
    """From 0, which trusts the values, to 1, which trusts the rewards; if not given 0.9 for "transition" (the paper's) and 0.95 for
    "token"."""
    whiten: bool = True
    """Advantages less their mean over the batch, over their deviation. The targets of the values stay as they are."""
    eps: float | None = None
    """Added to that deviation, in the unit of the rewards; 1e-6 if not given, and only with `whiten`."""

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ConfigError(f"level is {self.level!r}", cure='Choose "transition" or "token"')
        gamma, lam = self.discounts
        check_gamma(gamma)
        check_gamma(lam, name="lam")
        if type(self.whiten) is not bool:
            raise ConfigError(f"whiten is {self.whiten!r}", cure="Give true or false")
        if self.eps is None:
            return
        check_eps(self.eps)
        if not self.whiten:
            raise ConfigError(
                "eps is added to the deviation that whiten divides by", cure="Remove eps, or whiten = false"
            )

    @property
    def requirements(self) -> Requirements:
        """Values, and a backend that takes advantages of the level."""
        return Requirements(level=self.level, values=True, averages=self.whiten)

    @property
    def discounts(self) -> tuple[float, float]:
        """gamma and lam, the level's own where none were given."""
        gamma, lam = (0.99, 0.9) if self.level == "transition" else (1.0, 0.95)
        return (gamma if self.gamma is None else self.gamma, lam if self.lam is None else self.lam)

    def estimates(self, batch: TransitionBatch, values: Values, units: IntArray) -> ValueEstimates:
        """See `ValueEstimator`."""
        actions = [1] * len(batch) if self.level == "transition" else batch.action_lengths.tolist()
        known = [None if row is None else row[:count] for row, count in zip(values, actions, strict=True)]
        rows, returns = lambda_advantages(batch, known, actions, *self.discounts)
        nothing = np.zeros(0, dtype=np.float64)
        before = tuple(nothing if row is None else row for row in known)
        targets = tuple(row[: len(value)] + value for row, value in zip(rows, before, strict=True))
        if self.whiten:
            rows = self._whitened(rows, units, unknown=[value is None for value in known])
        means = np.array([row.mean() for row in rows], dtype=np.float64)
        per_token = tuple(rows) if self.level == "token" else None
        return ValueEstimates(returns, means, per_token, ValueTargets(targets, before))

    def _whitened(self, rows: Sequence[FloatArray], units: IntArray, *, unknown: Sequence[bool]) -> list[FloatArray]:
        """The rows normalised over the batch; every unit weighs the same, and in it every action."""
        lengths = [len(row) for row in rows]
        flat = np.concatenate([*rows, np.zeros(0)])
        over_all = Comparison(flat, np.zeros(len(flat), dtype=np.int64), np.repeat(units, lengths))
        made = whitened(
            over_all,
            flat,
            1e-6 if self.eps is None else self.eps,
            alone=np.repeat(np.array(unknown, dtype=np.bool_), lengths),
        )
        return np.split(made, np.cumsum(lengths)[:-1]) if lengths else []


def lambda_advantages(
    batch: TransitionBatch, values: Values, actions: Sequence[int], gamma: float, lam: float
) -> tuple[list[FloatArray], FloatArray]:
    """GAE along the steps of each rollout.

    Args:
        batch: of T transitions.
        values: (T,) of (B,) the value before each action; None where it is not known.
        actions: (T,) B of each transition.
        gamma: discount per action.
        lam: of the lambda-return.

    Returns:
        (T,) of (B,) advantages, and (T,) lambda-returns from each transition's first action on.
    """
    rows = [np.zeros(count, dtype=np.float64) for count in actions]
    returns = np.zeros(len(batch), dtype=np.float64)
    for rollout, steps in enumerate(rollout_steps(batch)):
        future, below = float(batch.rollout_rewards[rollout]), steps[-1][0]
        for depth, members in reversed(steps):
            future *= gamma ** (below - depth)
            seen = []
            for member in members.tolist():
                end = float(batch.call_rewards[member]) + future
                rows[member], returns[member] = _along(values[member], actions[member], end, gamma, lam)
                seen.append(returns[member] - (1 - lam) * rows[member][0])
            shares = [gamma ** (actions[member] - 1) * future for member in members.tolist()]
            future, below = sum(seen) - sum(shares) + sum(shares) / len(shares), depth
    return rows, returns


def _along(values: FloatArray | None, count: int, end: float, gamma: float, lam: float) -> tuple[FloatArray, float]:
    """(B,) advantages of one call's actions, and its return from the first on.

    Args:
        values: (B,) or None.
        count: B.
        end: what the last action earns, and what comes after it.
        gamma: discount per action.
        lam: of the lambda-return.
    """
    made = np.zeros(count, dtype=np.float64)
    if values is None:
        return made, gamma ** (count - 1) * end
    advantage = made[-1] = end - float(values[-1])
    for k in range(count - 2, -1, -1):
        delta = gamma * float(values[k + 1]) - float(values[k])
        advantage = made[k] = delta + gamma * lam * advantage
    return made, float(values[0] + made[0])
