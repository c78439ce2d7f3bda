"""The gradient of a batch: packs of a prefix tree, one forward and backward pass each, accumulated.

The gradient equals the sum of each transition's own gradient; packing changes the cost, not the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import LossSettings
from spangrad.transitions import FloatArray, PrefixTreePack
from spangrad_torch._forward import Predictions, predict
from spangrad_torch._not_finite import not_finite
from spangrad_torch._sums import Sums
from spangrad_torch._value_head import ValueHead
from spangrad_torch._value_loss import critic_of, pack_value_loss
from spangrad_torch._work import Work
from spangrad_torch.losses import correction_factor, k3, kl_term, log_ratio, negative_log_likelihood, policy_losses


def pack_logprobs(
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


def pack_values(
    model: PreTrainedModel,
    head: ValueHead,
    work: Work,
    *,
    autocast: Callable[[], AbstractContextManager[Any]],
    before_pack: Callable[[], None],
) -> list[Tensor]:
    """One (M,) tensor per pack: the value before each action token; the arguments are those of `accumulate`."""
    values = []
    for pack in work.packed.packs:
        before_pack()
        with torch.no_grad(), autocast():
            predictions = predict(model, pack, work.temperatures(pack))
            values.append(head(predictions.states)[predictions.row])
    return values


def accumulate(
    model: PreTrainedModel,
    work: Work,
    reference: Sequence[Tensor] | None,
    *,
    head: ValueHead | None = None,
    autocast: Callable[[], AbstractContextManager[Any]],
    before_pack: Callable[[], None],
) -> Sums:
    """Adds the batch's gradient to the weights' `grad`.

    Args:
        model: in evaluation mode: dropout would make the ratio to the sampler's policy noise.
        work: what to train on.
        reference: per pack, (M,) log-probabilities under the frozen reference; None without a KL term.
        head: the value head, for work with targets of values; its gradient is added to its own weights.
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
        sums.loss += float(loss.detach())
        if head is not None:
            loss = loss + pack_value_loss(head, work, pack, predictions, sums)
        if not torch.isfinite(loss):
            raise not_finite("The loss of this batch is not a finite number", critic_of(work))
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        sums.tokens += len(pack.targets)
    return sums


def _token_losses(
    work: Work, pack: PrefixTreePack, predictions: Predictions, reference: Tensor | None, sums: Sums
) -> Tensor:
    """(M,) unweighted losses; adds the pack's figures to `sums`."""
    logprobs = predictions.logprobs
    sums.add("entropy", predictions.entropy)
    if work.loss is None:
        losses = negative_log_likelihood(logprobs)
        sums.add("nll", losses)
        return losses
    losses = _policy_part(work, work.loss, pack, logprobs, sums)
    if work.loss.entropy_bonus:
        losses = losses - work.loss.entropy_bonus * predictions.entropy
    if work.loss.kl is not None and reference is not None:
        divergence = kl_term(work.loss.kl.form, logprobs, reference)
        sums.add("reference_kl", divergence)
        losses = losses + work.loss.kl.coefficient * divergence
    return losses


def _policy_part(work: Work, loss: LossSettings, pack: PrefixTreePack, logprobs: Tensor, sums: Sums) -> Tensor:
    """(M,) policy losses, corrected."""
    present = logprobs.detach()
    recorded, proximal = _like(logprobs, work.sampler_logprobs(pack)), _proximal(work, pack, present)
    actions = torch.from_numpy(pack.owners).to(logprobs.device)
    made = policy_losses(
        loss.policy,
        logprobs,
        log_ratio(logprobs, proximal),
        _like(logprobs, work.advantages_of(pack)),
        actions,
    )
    if made.ratio is not None:
        sums.add("ratio_mean", made.ratio)
        sums.rise("ratio_max", made.ratio)
    if made.clipped is not None:
        sums.add("clip_fraction", made.clipped)
    sums.add("approx_kl", k3(proximal, present))
    comparable = _like(logprobs, work.is_comparable(pack))
    sums.add("mismatch_kl", comparable * (recorded - present))
    sums.add("mismatch_tokens", comparable)
    if not loss.corrections:
        return made.losses
    factor = correction_factor(loss.corrections, proximal - recorded, actions)
    sums.add("correction_mean", factor)
    sums.add("masked_fraction", factor == 0)
    return factor * made.losses


def _proximal(work: Work, pack: PrefixTreePack, present: Tensor) -> Tensor:
    """(M,) log-probabilities under the proximal policy, without gradient."""
    if work.proximal == "present":
        return present
    return _like(present, work.given_logprobs(pack))


def _like(tensor: Tensor, values: FloatArray) -> Tensor:
    """The values as a tensor of the same kind on the same device."""
    return torch.from_numpy(values).to(tensor)
