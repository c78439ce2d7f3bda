"""Calls made in the same state after the same states, at several lengths of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import Comparison
from spangrad.lightningrl.credit._assigner import CreditNeeds
from spangrad.lightningrl.credit._options import check_gamma
from spangrad.lightningrl.credit._states import numbered, state_index
from spangrad.lightningrl.credit._steps import rewards_to_come, rollout_steps
from spangrad.transitions import IntArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class HGPO:
    """A = sum over k of w_k * A_k, with w_k in proportion to (k + 1)^alpha (HGPO, arXiv 2602.22817, equations 3 to 7).

    A_k compares the discounted rewards to come of the calls of a task whose state and k states before it are equal, k = 0 to
    `history`: k = 0 is GiGPO's step group; the longer the common past, the more alike the prompts, and the fewer the calls.
    A level at which a call has nobody to be compared with, or all returns are equal, is skipped, and the weights of the others
    are scaled up to a sum of 1. There is no part for the episode; `Sum` adds one.

    Built from a summary of the paper and its published code. A call with fewer than k steps before it is compared with those of
    the same beginning. The published code leaves it out of the levels above its number of steps, starts its weights at
    (k + 2)^alpha, and divides by the biased deviation.
    """

    gamma: float = 0.95
    """Discount per step, from 0 to 1."""
    history: int = 2
    """Most states before a call that are looked at, the paper's K (2 and 4 there)."""
    alpha: float = 1.0
    """How fast the weight grows with the length of the common past; 0 weighs all levels the same."""
    needs: ClassVar[CreditNeeds] = CreditNeeds(states=True, own_groups=True)

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if type(self.history) is not int or self.history < 1:
            raise ConfigError(
                f"history is {self.history!r}", cure="Give a whole number from 1; without a past gigpo does the same"
            )
        if type(self.alpha) not in {int, float} or not isfinite(self.alpha) or self.alpha < 0:
            raise ConfigError(f"alpha is {self.alpha!r}", cure="Give a number from 0, such as 1")

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """One comparison for each length of the common past."""
        to_come, _ = rewards_to_come(batch, batch.call_rewards, batch.rollout_rewards, self.gamma)
        states = state_index(batch)
        pasts = _pasts(batch, states)
        levels = [
            Comparison(
                to_come,
                numbered((state, past[:k]) for state, past in zip(states.tolist(), pasts, strict=True)),
                np.arange(len(batch)),
                differing_calls=True,
            )
            for k in range(self.history + 1)
        ]
        weights = np.array([(k + 1.0) ** self.alpha * level.has_signal(min_group=2) for k, level in enumerate(levels)])
        total = weights.sum(axis=0)
        shares = weights / np.where(total > 0, total, 1.0)
        return tuple(replace(level, weight=share) for level, share in zip(levels, shares, strict=True))


def _pasts(batch: TransitionBatch, states: IntArray) -> list[tuple[frozenset[int], ...]]:
    """For each transition, the states of the steps before its own, the nearest first; a step's states are a set."""
    pasts: list[tuple[frozenset[int], ...]] = [()] * len(batch)
    for steps in rollout_steps(batch):
        past: tuple[frozenset[int], ...] = ()
        for _, members in steps:
            for member in members:
                pasts[member] = past
            past = (frozenset(states[members].tolist()), *past)
    return pasts
