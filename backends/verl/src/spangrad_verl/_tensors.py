"""Rows as verl's TensorDict of jagged tensors, for any number of data-parallel workers, and what comes back as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from spangrad.transitions import FloatArray
from spangrad_verl._rows import Rows


@dataclass(frozen=True)
class Shares:
    """How rows are dealt out to workers: each gets as many, and about as many tokens."""

    order: tuple[int, ...]
    """Which row stands at each place, the workers' shares one after the other."""
    filling: tuple[bool, ...]
    """The row stands there once more, only to fill up the share: it weighs nothing."""

    @classmethod
    def of(cls, lengths: Sequence[int], *, workers: int, multiple: int = 1) -> Shares:
        """Deals rows out.

        Args:
            lengths: tokens of each row.
            workers: data-parallel ones.
            multiple: the number of rows of a share must be a multiple of this.
        """
        shortest = min(range(len(lengths)), key=lengths.__getitem__)
        missing = -len(lengths) % (workers * multiple)
        rows = [*range(len(lengths)), *[shortest] * missing]
        places = list(range(len(rows)))
        if workers > 1:
            parts = get_seqlen_balanced_partitions([lengths[row] for row in rows], workers, equal_size=True)
            places = [place for part in parts for place in part]
        return cls(tuple(rows[place] for place in places), tuple(place >= len(lengths) for place in places))


def as_tensors(rows: Rows, shares: Shares, **settings: Any) -> TensorDict:
    """What verl's engine takes.

    Args:
        rows: of an update, or only to compute log-probabilities of.
        shares: who gets which.
        settings: further entries that are no tensors.
    """
    at = [rows.transitions[row] for row in shares.order]
    prompts = [torch.tensor(transition.prompt_ids) for transition in at]
    actions = [torch.tensor(transition.action_ids) for transition in at]
    whole = [torch.cat(pair) for pair in zip(prompts, actions, strict=True)]
    used = [np.full(len(t.action_ids), float(not f)) for t, f in zip(at, shares.filling, strict=True)]
    tensors = {
        "input_ids": _jagged(whole),
        "position_ids": _jagged([torch.arange(len(ids)) for ids in whole]),
        "prompts": _jagged(prompts),
        "responses": _jagged(actions),
        "response_mask": _floats(used),
        "loss_mask": _floats(used),
    }
    temperatures = {float(rows.temperatures[row]) for row in shares.order}
    if (
        len(temperatures) == 1
    ):  # as one number it costs verl no copy of the logits where it is 1, and its fused kernels take it
        settings["temperature"] = temperatures.pop()
    else:
        tensors["temperature"] = torch.tensor([rows.temperatures[row] for row in shares.order], dtype=torch.float32)
    columns = {
        "token_weights": rows.token_weights,
        "policy_weights": rows.policy_weights,
        "advantages": rows.advantages,
        "old_log_probs": rows.proximal,
        "rollout_log_probs": rows.recorded,
        "ref_log_prob": rows.reference,
    }
    for name, column in columns.items():
        if column is not None:
            tensors[name] = _floats([column[row] for row in shares.order])
    tensors["comparable"] = _floats(
        [mask * float(rows.comparable[row]) for mask, row in zip(used, shares.order, strict=True)]
    )
    result: TensorDict = tu.get_tensordict(tensors, {"global_batch_size": 1, **settings})
    return result


def action_values(values: Tensor, shares: Shares, rows: Rows) -> list[FloatArray]:
    """(T,) of (A,) values of the actions' tokens.

    Args:
        values: jagged, of all positions of each row in the order of `shares`; that of a token stands one position before it.
        shares: who got which.
        rows: which went in.
    """
    found: dict[int, FloatArray] = {}
    for row, filling, of_row in zip(shares.order, shares.filling, values.unbind(), strict=True):
        if not filling:
            length = len(rows.transitions[row].action_ids)
            found[row] = of_row[-length - 1 : -1].double().numpy()
    return [found[row] for row in range(len(rows.transitions))]


def _floats(rows: Sequence[FloatArray]) -> Tensor:
    return _jagged([torch.tensor(row, dtype=torch.float32) for row in rows])


def _jagged(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
