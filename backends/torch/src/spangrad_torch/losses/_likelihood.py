"""Losses without a ratio: maximum likelihood, and the same weighted by advantages."""

from __future__ import annotations

from torch import Tensor


def negative_log_likelihood(logprob: Tensor) -> Tensor:
    """(M,) loss of maximum likelihood."""
    return -logprob


def reinforce(logprob: Tensor, advantage: Tensor) -> Tensor:
    """(M,) -A log pi (Williams 1992)."""
    return -advantage * logprob
