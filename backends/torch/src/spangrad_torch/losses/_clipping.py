"""Losses that clip the ratio: PPO's, and its dual clip."""

from __future__ import annotations

import torch
from torch import Tensor


def ppo_clip(ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Clipped surrogate loss, PPO eq. 7 (arXiv 1707.06347), with bounds of their own (DAPO, arXiv 2503.14476, eq. 10).

    Args:
        ratio_log: (M,) from `log_ratio`, or of whole actions from `action_ratio`.
        advantage: (M,)
        clip_low: ratios below 1 - clip_low gain nothing when the advantage is negative.
        clip_high: ratios above 1 + clip_high gain nothing when the advantage is positive.
    """
    ratio = ratio_log.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage)


def dual_clip(ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, bound: float) -> Tensor:
    """PPO's loss, held to -bound x advantage where the advantage is negative (arXiv 1912.09729, eq. 5).

    Args:
        ratio_log: (M,)
        advantage: (M,)
        clip_low: as in `ppo_clip`.
        clip_high: as in `ppo_clip`.
        bound: above 1 + clip_high.
    """
    plain = ppo_clip(ratio_log, advantage, clip_low=clip_low, clip_high=clip_high)
    return torch.where(advantage < 0, torch.minimum(plain, -bound * advantage), plain)


def is_clipped(
    ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, bound: float | None = None
) -> Tensor:
    """(M,) true where `ppo_clip`, or with a bound `dual_clip`, has no gradient because of the ratio."""
    ratio = ratio_log.exp()
    good, bad = advantage > 0, advantage < 0
    clipped = (good & (ratio > 1.0 + clip_high)) | (bad & (ratio < 1.0 - clip_low))
    return clipped if bound is None else clipped | (bad & (ratio > bound))
