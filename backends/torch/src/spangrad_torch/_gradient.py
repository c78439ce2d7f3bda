"""The gradient of a batch: packs of a prefix tree, one forward and backward pass each, accumulated.

The gradient equals the sum of each transition's own gradient; packing changes the cost, not the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import LossSettings, UpdateBatch
from spangrad.errors import BackendError
from spangrad.transitions import FloatArray, PackedSequences, PrefixTreePack, Transition, pack_sequences
from spangrad_torch import _loss
from spangrad_torch._forward import Predictions, predict


@dataclass(frozen=True)
class Work:
    """The part of a batch that has a gradient, laid out."""

    transitions: Sequence[Transition]
    advantages: FloatArray
    """(T,)"""
    token_weights: FloatArray
    """(T,)"""
    packed: PackedSequences
    on_policy: bool
    loss: LossSettings | None
    """None is maximum likelihood."""

    def per_token(self, pack: PrefixTreePack, values: FloatArray) -> FloatArray:
        """(M,) each action token's share of (T,) values."""
        return values[pack.owners]

    def sampler_logprobs(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) as recorded when the tokens were drawn."""
        rows = zip(pack.owners.tolist(), pack.offsets.tolist(), strict=True)
        return np.array([self.transitions[owner].logprobs[offset] for owner, offset in rows], dtype=np.float64)

    def temperatures(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) what the logits are divided by.

        Greedy answers carry the plain softmax's log-probabilities, and maximum likelihood is about the model as it is, so
        both count as 1.
        """
        if self.loss is None:
            return np.ones(len(pack.owners))
        return np.array([t.temperature or 1.0 for t in self.transitions])[pack.owners]

    def is_comparable(self, pack: PrefixTreePack) -> FloatArray:
        """(M,) 1 where the recorded log-probability is of the whole distribution, 0 where top_p or top_k cut it."""
        return np.array([float(is_untruncated(t)) for t in self.transitions])[pack.owners]


def is_untruncated(transition: Transition) -> bool:
    """Whether the recorded log-probabilities are those of the whole softmax. Greedy answers record just that."""
    return transition.temperature == 0 or (transition.top_p >= 1 and transition.top_k <= 0)


def lay_out(batch: UpdateBatch, *, imitate: bool, budget: int, share: bool) -> Work:
    """Drops transitions without a gradient, then packs the rest.

    A transition has none when its weight is 0, or its advantage is 0 and there is no KL term.
    """
    weights = np.asarray(batch.token_weights, dtype=np.float64)
    advantages = np.asarray(batch.advantages, dtype=np.float64)
    keep = weights != 0
    if not imitate and batch.loss.kl_coefficient == 0:
        keep &= advantages != 0
    kept = batch.transitions.select(keep).transitions
    return Work(
        transitions=kept,
        advantages=advantages[keep],
        token_weights=weights[keep],
        packed=pack_sequences(kept, budget=budget, share=share),
        on_policy=batch.on_policy,
        loss=None if imitate else batch.loss,
    )


@dataclass
class Sums:
    """What is added up over the tokens of a batch."""

    loss: float = 0.0
    tokens: int = 0
    by_name: dict[str, float] = field(default_factory=dict)
    """Plain sums over tokens."""

    def add(self, name: str, values: Tensor) -> None:
        """Adds (M,) values to the sum of that name."""
        self.by_name[name] = self.by_name.get(name, 0.0) + float(values.detach().double().sum())

    def metrics(self) -> Mapping[str, float]:
        """Means over tokens; `mismatch_kl` over those whose recorded log-probabilities can be compared."""
        comparable = self.by_name.get("mismatch_tokens", 0.0)
        counts = {"mismatch_kl": comparable, "mismatch_tokens": 1.0}
        return {name: total / max(counts.get(name, self.tokens), 1.0) for name, total in sorted(self.by_name.items())}


def reference_logprobs(
    model: PreTrainedModel,
    work: Work,
    *,
    autocast: Callable[[], AbstractContextManager[Any]],
    before_pack: Callable[[], None],
) -> list[Tensor]:
    """One (M,) tensor per pack, under the weights the model has now; the arguments are those of `accumulate`."""
    logprobs = []
    for pack in work.packed.packs:
        before_pack()
        with torch.no_grad(), autocast():
            logprobs.append(predict(model, pack, work.temperatures(pack)).logprobs)
    return logprobs


def accumulate(
    model: PreTrainedModel,
    work: Work,
    reference: Sequence[Tensor] | None,
    *,
    autocast: Callable[[], AbstractContextManager[Any]],
    before_pack: Callable[[], None],
) -> Sums:
    """Adds the batch's gradient to the weights' `grad`.

    Args:
        model: in evaluation mode: dropout would make the ratio to the sampler's policy noise.
        work: what to train on.
        reference: per pack, (M,) log-probabilities under the frozen reference; None without a KL term.
        autocast: makes the context of the forward pass, which sets its precision.
        before_pack: called before each pack; may raise to give up.

    Raises:
        BackendError: the loss is not a finite number.
    """
    sums = Sums()
    for number, pack in enumerate(work.packed.packs):
        before_pack()
        with autocast():
            predictions = predict(model, pack, work.temperatures(pack))
        frozen = None if reference is None else reference[number]
        per_token = _token_losses(work, pack, predictions, frozen, sums)
        weight = _like(predictions.logprobs, work.per_token(pack, work.token_weights))
        loss = (weight * per_token).sum()
        if not torch.isfinite(loss):
            raise BackendError(
                "The loss of this batch is not a finite number, so no step was taken",
                cure="Go back to the last checkpoint with a smaller learning rate; with precision bf16 also try fp32",
            )
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        sums.loss += float(loss.detach())
        sums.tokens += len(pack.targets)
    return sums


def _token_losses(
    work: Work, pack: PrefixTreePack, predictions: Predictions, reference: Tensor | None, sums: Sums
) -> Tensor:
    """(M,) unweighted losses; adds the pack's figures to `sums`."""
    logprobs = predictions.logprobs
    sums.add("entropy", predictions.entropy)
    if work.loss is None:
        losses = _loss.negative_log_likelihood(logprobs)
        sums.add("nll", losses)
        return losses
    advantage = _like(logprobs, work.per_token(pack, work.advantages))
    recorded = _like(logprobs, work.sampler_logprobs(pack))
    comparable = _like(logprobs, work.is_comparable(pack))
    old = logprobs.detach() if work.on_policy else recorded
    ratio = _loss.log_ratio(logprobs, old)
    bounds = {"clip_low": work.loss.clip_low, "clip_high": work.loss.clip_high}
    losses = _loss.ppo_clip(ratio, advantage, **bounds)
    sums.add("clip_fraction", _loss.is_clipped(ratio, advantage, **bounds))
    sums.add("approx_kl", _loss.k3(old, logprobs))
    sums.add("mismatch_kl", comparable * (recorded - logprobs))
    sums.add("mismatch_tokens", comparable)
    if reference is not None:
        divergence = _loss.k3(logprobs, reference)
        sums.add("reference_kl", divergence)
        losses = losses + work.loss.kl_coefficient * divergence
    return losses


def _like(tensor: Tensor, values: FloatArray) -> Tensor:
    """The values as a tensor of the same kind on the same device."""
    return torch.from_numpy(values).to(tensor)
