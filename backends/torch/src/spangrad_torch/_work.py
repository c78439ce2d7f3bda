"""The part of a batch that has a gradient, laid out into packs of a prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spangrad.backend import LossSettings, Proximal, UpdateBatch
from spangrad.transitions import (
    BoolArray,
    FloatArray,
    IntArray,
    PackedSequences,
    PrefixTreePack,
    Transition,
    ValueTargets,
    pack_sequences,
)


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
    token_advantages: Sequence[FloatArray] | None = None
    """As in `UpdateBatch`, for the transitions kept."""
    value_targets: ValueTargets | None = None
    """Likewise."""

    def per_token(self, pack: PrefixTreePack, values: FloatArray) -> FloatArray:
        """(M,) each action token's share of (T,) values."""
        return values[pack.owners]

    def advantages_of(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) of each action token."""
        rows = self.token_advantages
        return self.per_token(pack, self.advantages) if rows is None else of_tokens(rows, pack)

    def valued(self, pack: PrefixTreePack, targets: ValueTargets) -> tuple[IntArray, FloatArray]:
        """(V,) which of the pack's M action tokens have a target, and (V,) what each weighs.

        The targets of a call share the weight of all its tokens.
        """
        counts = np.array([len(row) for row in targets.targets], dtype=np.int64)
        tokens = np.array([len(transition.action_ids) for transition in self.transitions], dtype=np.int64)
        weights = self.token_weights * tokens / np.maximum(counts, 1)
        places = np.flatnonzero(pack.offsets < counts[pack.owners])
        return places, weights[pack.owners[places]]

    def sampler_logprobs(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) as recorded when the tokens were drawn."""
        return of_tokens([transition.logprobs for transition in self.transitions], pack)

    def given_logprobs(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) under a proximal policy other than the present one."""
        return self.sampler_logprobs(pack) if isinstance(self.proximal, str) else of_tokens(self.proximal, pack)

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

    A transition has none when its weight is 0, or its advantage is 0, nothing else is in the loss, and no value is learnt from it.
    """
    weights = np.asarray(batch.token_weights, dtype=np.float64)
    advantages = np.asarray(batch.advantages, dtype=np.float64)
    keep = weights != 0
    if not imitate and batch.loss.kl is None and batch.loss.entropy_bonus == 0:
        keep &= _pulls(batch, advantages)
    kept = batch.transitions.select(keep).transitions
    return Work(
        transitions=kept,
        advantages=advantages[keep],
        token_weights=weights[keep],
        packed=pack_sequences(kept, budget=budget, share=share),
        proximal=_kept(batch.proximal, keep),
        loss=None if imitate else batch.loss,
        token_advantages=None if imitate else _kept_rows(batch.token_advantages, keep),
        value_targets=None if imitate or batch.value_targets is None else batch.value_targets.select(keep),
    )


def _pulls(batch: UpdateBatch, advantages: FloatArray) -> BoolArray:
    """(T,) the transition has an advantage somewhere, or a target of its value."""
    pulls: BoolArray = advantages != 0
    if batch.token_advantages is not None:
        pulls = np.array([bool(np.any(row)) for row in batch.token_advantages], dtype=np.bool_)
    if batch.value_targets is not None:
        pulls = pulls | np.array([len(row) > 0 for row in batch.value_targets.targets], dtype=np.bool_)
    return pulls


def _kept(proximal: Proximal, keep: BoolArray) -> Proximal:
    """The proximal log-probabilities of the transitions kept."""
    return proximal if isinstance(proximal, str) else (_kept_rows(proximal, keep) or [])


def _kept_rows(rows: Sequence[FloatArray] | None, keep: BoolArray) -> list[FloatArray] | None:
    return None if rows is None else [row for row, kept in zip(rows, keep, strict=True) if kept]


def of_tokens(
    rows: Sequence[Sequence[float] | FloatArray], pack: PrefixTreePack, places: IntArray | None = None
) -> FloatArray:
    """(M,) each action token's value out of (T,) rows of (A,); with `places` (V,) only those of the M."""
    owners, offsets = (column if places is None else column[places] for column in (pack.owners, pack.offsets))
    tokens = zip(owners.tolist(), offsets.tolist(), strict=True)
    return np.array([rows[owner][offset] for owner, offset in tokens], dtype=np.float64)


def in_rows(work: Work, per_pack: Sequence[Tensor]) -> list[FloatArray]:
    """(T,) of (A,) values of the actions' tokens, out of one (M,) per pack."""
    rows = [np.zeros(len(transition.action_ids)) for transition in work.transitions]
    for pack, values in zip(work.packed.packs, per_pack, strict=True):
        for owner, offset, value in zip(pack.owners.tolist(), pack.offsets.tolist(), values.tolist(), strict=True):
            rows[owner][offset] = value
    return rows
