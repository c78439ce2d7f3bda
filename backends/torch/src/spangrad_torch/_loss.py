"""Policy losses per token, as pure functions.

Shapes: (M,) action tokens, one entry per transition that owns the token. Every function returns (M,) values of which the
caller takes the weighted sum. A token shared by several transitions has an entry for each, so clipping sees each owner's own
advantage and nothing needs merging.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: beyond it a ratio says only that the policies are unrelated, and its square no longer fits in fp32 sums."""


def log_ratio(logprob: Tensor, old_logprob: Tensor) -> Tensor:
    """Log of the probability ratio new / old, held to +-20 so that its exponential stays finite."""
    return (logprob - old_logprob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def ppo_clip(ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Clipped surrogate loss, PPO eq. 7 (arXiv 1707.06347), with bounds of their own (DAPO, arXiv 2503.14476, eq. 10).

    Args:
        ratio_log: (M,) from `log_ratio`.
        advantage: (M,)
        clip_low: ratios below 1 - clip_low gain nothing when the advantage is negative.
        clip_high: ratios above 1 + clip_high gain nothing when the advantage is positive.
    """
    ratio = ratio_log.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage)


def is_clipped(ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """(M,) true where `ppo_clip` has no gradient because the ratio left its bounds in the direction the advantage asks for."""
    ratio = ratio_log.exp()
    return ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))


def k3(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """Estimate of KL(p || q) from samples of p: q/p - 1 - log(q/p), never negative (Schulman 2020, joschu.net/blog/kl-approx).

    Args:
        logprob: (M,) under p, which drew the tokens.
        other_logprob: (M,) under q.
    """
    difference = log_ratio(other_logprob, logprob)
    return difference.exp() - difference - 1.0


def negative_log_likelihood(logprob: Tensor) -> Tensor:
    """Loss of maximum likelihood."""
    return -logprob
