"""The loss that verl's engine minimises: verl's own policy loss, KL estimate and sums, with a weight for each token.

It runs in the learner's workers, once for each micro-batch. verl's `ppo_loss` is the like without weights on the KL term and the entropy;
`token-sum` makes the result the plain sum over all tokens of all workers, however these are split into micro-batches.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.utils.padding import no_padding_2_padding

from spangrad_torch.losses import k3
from spangrad_verl._terms import LossTerms

_SUM: Final = "token-sum"
_CLIPPING: Final = ("vanilla", "gspo", "cispo")
_COLUMNS: Final = (
    "response_mask",
    "token_weights",
    "policy_weights",
    "advantages",
    "comparable",
    "old_log_probs",
    "rollout_log_probs",
    "ref_log_prob",
)


def token_loss(
    config: Any, terms: LossTerms, model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """The loss of a micro-batch, and figures.

    Args:
        config: verl's ActorConfig with the options of the policy loss.
        terms: what is minimised.
        model_output: log_probs, and entropy if there is a bonus for it: jagged, of all positions.
        data: the rows of `_tensors.as_tensors`.
        dp_group: unused; verl hands it over.
    """
    del dp_group
    workers = data["dp_size"]
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    entropies = no_padding_2_padding(model_output["entropy"], data) if "entropy" in model_output else None
    rows = data.select(*(name for name in _COLUMNS if name in data)).to_padded_tensor()
    mask, weights = rows["response_mask"].to(torch.bool), rows["token_weights"]
    config.global_batch_info.update(dp_size=workers, batch_num_tokens=None, global_batch_size=1, loss_scale_factor=None)
    policy_weights = rows["policy_weights"]
    if terms.mode == "sapo":  # verl's takes the mean over each row whatever it is told
        policy_weights = policy_weights * rows["response_mask"].sum(dim=-1, keepdim=True)
    loss, told = get_policy_loss_fn(terms.mode)(
        old_log_prob=rows["old_log_probs"] if "old_log_probs" in rows else logprobs.detach(),
        log_prob=logprobs,
        advantages=rows["advantages"],
        response_mask=mask,
        loss_agg_mode=_SUM,
        config=config,
        rollout_is_weights=policy_weights,
    )
    tokens = mask.sum()
    sums = {"tokens": tokens}
    if terms.kl_form is not None:
        penalty = _kl(logprobs, rows["ref_log_prob"], terms.kl_form)
        loss = loss + terms.kl_coefficient * agg_loss(penalty * weights, mask, _SUM, dp_size=workers)
        sums["reference_kl"] = (penalty * mask).sum()
    if entropies is not None:
        loss = loss - terms.entropy_bonus * agg_loss(entropies * weights, mask, _SUM, dp_size=workers)
        sums["entropy"] = (entropies * mask).sum()
    if "rollout_log_probs" in rows:
        comparable = rows["comparable"]
        sums["mismatch_kl"] = ((rows["rollout_log_probs"] - logprobs) * comparable).sum()
        sums["mismatch_tokens"] = comparable.sum()
    if "old_log_probs" in rows:
        sums["approx_kl"] = (k3(rows["old_log_probs"], logprobs) * mask).sum()
    if terms.mode in _CLIPPING:
        sums["clip_fraction"] = told["actor/pg_clipfrac"] * tokens
    # verl's own figures are means over the micro-batch's tokens.
    sums |= {f"verl/{name.removeprefix('actor/')}": value * tokens for name, value in told.items()}
    return loss, {name: float(torch.as_tensor(value).detach()) for name, value in sums.items()}


def _kl(logprobs: Tensor, reference: Tensor, form: str) -> Tensor:
    """verl's estimate; but of k3 without its bound of 10, beyond which a token far from the reference has no gradient back to it."""
    if form == "k3":
        return k3(logprobs, reference)
    penalty: Tensor = kl_penalty(logprobs, reference, form)
    return penalty
