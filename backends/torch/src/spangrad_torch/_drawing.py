"""From logits to drawn tokens, and the log-probability each was drawn with.

Pure functions. A token is drawn by inverting the cumulative distribution at a given uniform number, so the same number and
the same logits give the same token whatever else is in the batch. Letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from spangrad.backend import SamplingParams
from spangrad.errors import BackendError

_BLOCK: Final = 128
"""Ids summed together before the running sum."""
_LIKELIEST: Final = 256
"""How many of the likeliest tokens are tried for a nucleus before the whole vocabulary is sorted."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """One drawn token."""

    token_id: int
    logprob: float
    """Under the distribution it was drawn from; at temperature 0 under the plain softmax."""
    alternatives: tuple[tuple[int, float], ...]
    """The likeliest (id, logprob) pairs of that distribution, as many as were asked for."""


def draw(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    top_logprobs: Sequence[int],
) -> list[DrawnToken]:
    """Draws one token for each row.

    Args:
        logits: (B, V) in fp32; overwritten.
        params: (B) each row's temperature, top_k and top_p, applied in that order.
        uniforms: (B) a number in [0, 1) for each row; unused at temperature 0.
        top_logprobs: (B) how many alternatives to report.

    Raises:
        BackendError: a row's logits are not numbers.
    """
    ids = _shape_distributions(logits, params)
    weights = _blocks(logits.exp())  # (B, V / block, block), not normalised
    sums = weights.sum(-1).double()  # (B, V / block)
    total = sums.sum(-1).log().float()  # (B,)
    if not bool(torch.isfinite(total).all()):
        raise BackendError(
            "The model's logits are not finite numbers",
            cure="Its weights are damaged: go back to an earlier checkpoint",
        )
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        u = torch.tensor([uniforms[row] for row in drawn], dtype=torch.float64, device=logits.device)
        ids = ids.index_copy(0, rows, _invert(weights, sums, rows, u))
    logprobs = logits.gather(1, ids[:, None])[:, 0] - total
    return [
        DrawnToken(token_id, logprob, _alternatives(logits[row], total[row], count))
        for row, (token_id, logprob, count) in enumerate(
            zip(ids.tolist(), logprobs.tolist(), top_logprobs, strict=True)
        )
    ]


def _shape_distributions(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Turns logits (B, V), in place, into those of the distributions to draw from, up to a constant for each row.

    Returns:
        (B,) the likeliest ids.
    """
    highest, likeliest = logits.max(dim=-1)
    # Before the division: however low the temperature, the likeliest token stays at 0 and nothing overflows.
    logits.sub_(highest[:, None])
    temperatures = [p.temperature or 1.0 for p in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits.div_(torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None])
    for row, p in enumerate(params):
        if p.temperature > 0 and (p.top_k > 0 or p.top_p < 1):
            _limit(logits[row], p)
    return likeliest


def _blocks(weights: torch.Tensor) -> torch.Tensor:
    """(B, V) as (B, V / block, block), filled up with zeros."""
    missing = -weights.shape[1] % _BLOCK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    return weights.view(len(weights), -1, _BLOCK)


def _invert(weights: torch.Tensor, sums: torch.Tensor, rows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """For some rows (R), the first id whose cumulative weight exceeds the row's share; never one of weight 0.

    The block is found first and then the id in it: a running sum over the whole vocabulary is several times slower.

    Args:
        weights: (B, V / block, block).
        sums: (B, V / block) over each block.
        rows: (R,) which rows.
        uniforms: (R,) in [0, 1).
    """
    running = sums[rows].cumsum(-1)
    target = uniforms * running[:, -1]
    block = _first_above(running, target)
    before = torch.where(block > 0, running.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    inside = weights[rows, block].double().cumsum(-1)  # (R, block)
    return block * _BLOCK + _first_above(inside, target - before)


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(B,) the first place where a running sum exceeds the target, at the latest where it reaches its end."""
    place = torch.searchsorted(sums, target[:, None].contiguous(), right=True)[:, 0]
    last = torch.searchsorted(sums, sums[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(place, last)


def _limit(logits: torch.Tensor, params: SamplingParams) -> None:
    """Removes from a row (V,), in place, what top_k and then top_p exclude."""
    size = logits.shape[-1]
    count = min(params.top_k or size, size)
    keep = torch.topk(logits, count).indices if params.top_p >= 1 else _nucleus(logits, count, params.top_p)
    kept = logits[keep]
    logits.fill_(float("-inf"))
    logits[keep] = kept


def _nucleus(logits: torch.Tensor, count: int, top_p: float) -> torch.Tensor:
    """Ids of the fewest likeliest tokens whose probabilities, among the `count` likeliest, sum to `top_p` or more."""
    limited = count < logits.shape[-1]
    values, ids = torch.topk(logits, count if limited else min(_LIKELIEST, count))
    total = torch.logsumexp(values if limited else logits, dim=-1)
    sums = torch.exp(values - total).cumsum(-1, dtype=torch.float64)
    if not limited and float(sums[-1]) < top_p and len(ids) < count:
        values, ids = torch.sort(logits, descending=True)
        sums = torch.exp(values - total).cumsum(-1, dtype=torch.float64)
    needed = int(torch.searchsorted(sums, top_p)) + 1
    return ids[: max(1, min(needed, len(ids)))]


def _alternatives(logits: torch.Tensor, total: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest ids of a row (V,) with their log-probabilities; excluded ids are left out."""
    if count == 0:
        return ()
    values, ids = torch.topk(logits, min(count, logits.shape[-1]))
    pairs = zip(ids.tolist(), (values - total).tolist(), strict=True)
    return tuple((token_id, logprob) for token_id, logprob in pairs if logprob != float("-inf"))
