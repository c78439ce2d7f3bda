"""The ratio of two policies' probabilities, by its logarithm."""

from __future__ import annotations

from typing import Final

from torch import Tensor

MAX_LOG_RATIO: Final = 20.0
"""exp(20) is 5e8: beyond it a ratio says only that the policies are unrelated, and its square no longer fits in fp32 sums."""


def log_ratio(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """Log of the probability ratio of one policy to another, held to +-20 so that its exponential stays finite.

    Args:
        logprob: (M,) under the one.
        other_logprob: (M,) under the other.
    """
    return (logprob - other_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
