"""The loss of CISPO."""

from __future__ import annotations

from torch import Tensor


def cispo(logprob: Tensor, ratio_log: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """REINFORCE weighted by the clipped ratio, which carries no gradient (arXiv 2506.13585, eqs. 4-5).

    Args:
        logprob: (M,)
        ratio_log: (M,) from `log_ratio`.
        advantage: (M,)
        clip_low: the weight is at least 1 - clip_low.
        clip_high: the weight is at most 1 + clip_high.
    """
    weight = ratio_log.detach().exp().clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight * advantage * logprob
