"""Estimates of KL(p || q) from samples of p (Schulman 2020, joschu.net/blog/kl-approx), as terms of a loss.

Shapes: (M,) log-probabilities under p, which drew the tokens and is trained, and under q. With d = log p - log q.
"""

from __future__ import annotations

from typing import assert_never

from torch import Tensor

from spangrad.backend import KlForm
from spangrad_torch.losses._ratio import log_ratio


def k1(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """d by value; by gradient d grad log p, whose mean over samples is the gradient of KL(p || q).

    The derivative of d itself is grad log p, whose mean is 0 whatever q is: as a loss it would be noise. (See arXiv
    2506.09477.)
    """
    difference = log_ratio(logprob, other_logprob)
    pull = k2(logprob, other_logprob)
    return difference.detach() + pull - pull.detach()


def k2(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """d^2 / 2; its gradient is d grad log p, whose mean over samples is the gradient of KL(p || q)."""
    return log_ratio(logprob, other_logprob).square() / 2.0


def k3(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """exp(-d) - 1 + d, never negative; its gradient is (1 - exp(-d)) grad log p, with the mean of that of KL(q || p)."""
    difference = log_ratio(other_logprob, logprob)
    return difference.exp() - difference - 1.0


def kl_term(form: KlForm, logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """(M,) the estimate of that name."""
    match form:
        case "k1":
            return k1(logprob, other_logprob)
        case "k2":
            return k2(logprob, other_logprob)
        case "k3":
            return k3(logprob, other_logprob)
        case never:
            assert_never(never)
