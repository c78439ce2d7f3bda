"""Log-probabilities of a pack's action tokens, by one forward pass under a tree mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.transitions import FloatArray, PrefixTreePack, pack_sequences
from spangrad_torch._flex_attention import flex_mask
from spangrad_torch._tree_attention import worthwhile_runs


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the model says about the action tokens of a pack (M)."""

    logprobs: Tensor
    """(M,) of each action token given its prefix, at its owner's temperature; carries the gradient."""
    entropy: Tensor
    """(M,) of the distribution each action token was drawn from, in nats; carries the gradient too."""
    states: Tensor
    """(R, H) hidden states at the distinct nodes and temperatures that predict tokens, as the model's head read them."""
    row: Tensor
    """(M,) which of the R each action token was predicted from."""


def predict(model: PreTrainedModel, pack: PrefixTreePack, temperatures: FloatArray) -> Predictions:
    """Runs the model over the nodes of a pack.

    The head, whose vocabulary makes it the widest layer, is computed only at nodes that predict an action token, and once for
    all owners of equal temperature.

    Args:
        model: a causal language model whose attention takes a 4-D mask (see `takes_tree_masks`) if the pack branches.
        pack: N nodes, M action tokens.
        temperatures: (M,) what the logits of each action token are divided by; above 0.
    """
    device = model.device
    rows, row_of = np.unique(np.stack([pack.sources.astype(np.float64), temperatures]), axis=1, return_inverse=True)
    nodes, temperature = (
        torch.from_numpy(rows[0].astype(np.int64)).to(device),
        torch.from_numpy(rows[1]).float().to(device),
    )
    tree = {} if pack.is_path else _tree_arguments(model, pack)
    with _read_by_head(model) as read:
        logits = model(
            input_ids=torch.from_numpy(pack.token_ids)[None].to(device), logits_to_keep=nodes, use_cache=False, **tree
        ).logits[0]
    row = torch.from_numpy(row_of.reshape(-1)).to(device)
    targets = torch.from_numpy(pack.targets).to(device)
    logprobs, entropy = _Choice.apply(logits, temperature, row, targets)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return Predictions(logprobs=logprobs, entropy=entropy[row], states=read[-1][0], row=row)


@contextmanager
def _read_by_head(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """What the model's head is given inside the block: (1, R, H) at each forward pass."""
    read: list[Tensor] = []
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    handle = head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        yield read
    finally:
        handle.remove()


class _Choice(torch.autograd.Function):
    """Log-probabilities of chosen tokens and the entropy of each row, in three buffers of the logits' size at most.

    Composed of torch's operators it would take twice as many, and at a vocabulary of 50,000 they are the largest of all.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: Tensor, row: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(R, V) logits, (R,) temperatures, (M,) rows and ids of the chosen to (M,) log-probabilities and (R,) entropies."""
        ctx.set_materialize_grads(False)
        scaled = logits.float() / temperature[:, None]
        log_normaliser = scaled.logsumexp(dim=-1)
        weighted = (scaled - log_normaliser[:, None]).exp_().mul_(scaled)
        entropy = log_normaliser - weighted.sum(dim=-1)
        ctx.save_for_backward(scaled, log_normaliser, temperature, row, targets, entropy)
        ctx.logits_dtype = logits.dtype
        return scaled[row, targets] - log_normaliser[row], entropy

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor | None, of_entropy: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        """With p the softmax: d logprob / d logit is (1 at the chosen id) - p, d entropy / d logit is -p (log p + entropy),
        both divided by the temperature. A gradient is None where the loss does not use the output.
        """
        scaled, log_normaliser, temperature, row, targets, entropy = ctx.saved_tensors
        if gradient is None:
            gradient = scaled.new_zeros(len(row))
        result = scaled - log_normaliser[:, None]
        factor = torch.zeros_like(log_normaliser).index_add_(0, row, gradient)[:, None]
        if of_entropy is not None:
            factor = (result + entropy[:, None]).mul_(of_entropy[:, None]).add_(factor)
        result.exp_().mul_(factor).neg_()
        result.index_put_((row, targets), gradient, accumulate=True)
        return result.div_(temperature[:, None]).to(ctx.logits_dtype), None, None, None


def _tree_arguments(model: PreTrainedModel, pack: PrefixTreePack) -> dict[str, Any]:
    """The pack's mask, true where attention is allowed, the depth of each node as its position, and its runs if they pay."""
    positions = torch.from_numpy(pack.positions)[None].to(model.device)
    if (flexible := flex_mask(model, pack)) is not None:
        return {"attention_mask": flexible, "position_ids": positions}
    node = torch.arange(len(pack), device=model.device)
    subtree_end = torch.from_numpy(pack.subtree_end).to(model.device)
    mask = (node[None, :] <= node[:, None]) & (node[:, None] < subtree_end[None, :])
    arguments: dict[str, Any] = {"attention_mask": mask[None, None], "position_ids": positions}
    if (runs := worthwhile_runs(model, pack)) is not None:
        arguments["tree_runs"] = runs
    return arguments


@dataclass(frozen=True)
class _Probe:
    """A sequence to try a model with."""

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]


def takes_tree_masks(model: PreTrainedModel) -> bool:
    """Whether two branches of one forward pass give what they give alone.

    Models with recurrent layers, or with attention that makes its own mask, do not; they are trained one sequence at a time.
    Sliding windows are told from the configuration, for a probe would have to be longer than the window.
    """
    text = model.config.get_text_config()
    if any(kind != "full_attention" for kind in getattr(text, "layer_types", None) or ()):
        return False
    if getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True):
        return False
    stem = tuple(range(3, 9))
    probes = [_Probe(stem, (9, 3, 10, 4)), _Probe(stem, (9, 7, 5, 8)), _Probe(stem[:3], (11, 12, 6))]
    together = _probe_logprobs(model, probes, share=True)
    alone = _probe_logprobs(model, probes, share=False)
    return bool(torch.allclose(together, alone, atol=1e-4, rtol=1e-4))


@torch.no_grad()
def _probe_logprobs(model: PreTrainedModel, probes: list[_Probe], *, share: bool) -> Tensor:
    """Log-probabilities of the probes' actions, in the order of (probe, position)."""
    packed = pack_sequences(probes, budget=sum(len(p.prompt_ids) + len(p.action_ids) for p in probes), share=share)
    values: dict[tuple[int, int], float] = {}
    for pack in packed.packs:
        logprobs = predict(model, pack, np.ones(len(pack.targets))).logprobs.tolist()
        values.update(zip(zip(pack.owners.tolist(), pack.offsets.tolist(), strict=True), logprobs, strict=True))
    return torch.tensor([values[key] for key in sorted(values)])
