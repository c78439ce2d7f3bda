"""The part of a batch that has a gradient, laid out into packs of a prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spangrad.backend import LossSettings, Proximal, UpdateBatch
from spangrad.transitions import BoolArray, FloatArray, PackedSequences, PrefixTreePack, Transition, pack_sequences


@dataclass(frozen=True)
class Work:
    """The part of a batch that has a gradient, laid out."""

    transitions: Sequence[Transition]
    advantages: FloatArray
    """(T,)"""
    token_weights: FloatArray
    """(T,)"""
    packed: PackedSequences
    proximal: Proximal
    """As in `UpdateBatch`, for the transitions kept."""
    loss: LossSettings | None
    """None is maximum likelihood."""

    def per_token(self, pack: PrefixTreePack, values: FloatArray) -> FloatArray:
        """(M,) each action token's share of (T,) values."""
        return values[pack.owners]

    def sampler_logprobs(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) as recorded when the tokens were drawn."""
        return _of_tokens([transition.logprobs for transition in self.transitions], pack)

    def given_logprobs(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) under a proximal policy other than the present one."""
        return self.sampler_logprobs(pack) if isinstance(self.proximal, str) else _of_tokens(self.proximal, pack)

    def temperatures(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) what the logits are divided by.

        Greedy answers carry the plain softmax's log-probabilities, and maximum likelihood is about the model as it is, so
        both count as 1.
        """
        if self.loss is None:
            return np.ones(len(pack.owners))
        return temperatures_of(self.transitions)[pack.owners]

    def is_comparable(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) 1 where the recorded log-probability is of the whole distribution, 0 where top_p or top_k cut it."""
        return np.array([float(is_untruncated(t)) for t in self.transitions])[pack.owners]


def temperatures_of(transitions: Sequence[Transition]) -> FloatArray:
    """(T,) what the logits are divided by; 1 for greedy answers, which carry the plain softmax's log-probabilities."""
    return np.array([transition.temperature or 1.0 for transition in transitions])


def is_untruncated(transition: Transition) -> bool:
    """Whether the recorded log-probabilities are those of the whole softmax. Greedy answers record just that."""
    return transition.temperature == 0 or (transition.top_p >= 1 and transition.top_k <= 0)


def lay_out(batch: UpdateBatch, *, imitate: bool, budget: int, share: bool) -> Work:
    """Drops transitions without a gradient, then packs the rest.

    A transition has none when its weight is 0, or its advantage is 0 and nothing else is in the loss.
    """
    weights = np.asarray(batch.token_weights, dtype=np.float64)
    advantages = np.asarray(batch.advantages, dtype=np.float64)
    keep = weights != 0
    if not imitate and batch.loss.kl is None and batch.loss.entropy_bonus == 0:
        keep &= advantages != 0
    kept = batch.transitions.select(keep).transitions
    return Work(
        transitions=kept,
        advantages=advantages[keep],
        token_weights=weights[keep],
        packed=pack_sequences(kept, budget=budget, share=share),
        proximal=_kept(batch.proximal, keep),
        loss=None if imitate else batch.loss,
    )


def _kept(proximal: Proximal, keep: BoolArray) -> Proximal:
    """The proximal log-probabilities of the transitions kept."""
    return proximal if isinstance(proximal, str) else [row for row, kept in zip(proximal, keep, strict=True) if kept]


def _of_tokens(rows: Sequence[Sequence[float] | FloatArray], pack: PrefixTreePack) -> FloatArray:
    """(M,) each action token's value out of (T,) rows of (A,)."""
    tokens = zip(pack.owners.tolist(), pack.offsets.tolist(), strict=True)
    return np.array([rows[owner][offset] for owner, offset in tokens], dtype=np.float64)


def in_rows(work: Work, per_pack: Sequence[Tensor]) -> list[FloatArray]:
    """(T,) of (A,) values of the actions' tokens, out of one (M,) per pack."""
    rows = [np.zeros(len(transition.action_ids)) for transition in work.transitions]
    for pack, values in zip(work.packed.packs, per_pack, strict=True):
        for owner, offset, value in zip(pack.owners.tolist(), pack.offsets.tolist(), values.tolist(), strict=True):
            rows[owner][offset] = value
    return rows
