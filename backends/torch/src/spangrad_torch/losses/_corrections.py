"""Factors that make up for tokens drawn from another policy than the proximal one.

Shapes: (M,) `weight_log`, log of w = pi_proximal / mu of each token, without gradient; `actions` as in `sum_over_actions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from spangrad.backend import Correction, GeometricRejection, MaskedIS, TruncatedIS
from spangrad_torch.losses._actions import mean_over_actions, sum_over_actions
from spangrad_torch.losses._ratio import MAX_LOG_RATIO


def truncated_is(weight_log: Tensor, *, cap: float) -> Tensor:
    """(M,) min(w, cap) (Ionides 2008, truncated importance sampling); w of tokens, or of actions from `sum_over_actions`."""
    return weight_log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)


def masked_is(weight_log: Tensor, *, low: float, high: float) -> Tensor:
    """(M,) w from low to high, 0 outside (IcePop, arXiv 2510.18855)."""
    weight = weight_log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def geometric(weight_log: Tensor, actions: Tensor, *, low: float, high: float) -> Tensor:
    """(M,) 1 for the tokens of actions whose geometric mean of w lies from low to high, 0 for others."""
    mean = mean_over_actions(weight_log, actions).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ((mean >= low) & (mean <= high)).to(weight_log)


def correction_factor(corrections: Sequence[Correction], weight_log: Tensor, actions: Tensor) -> Tensor:
    """(M,) the product of the corrections' factors."""
    factor = torch.ones_like(weight_log)
    for correction in corrections:
        factor = factor * _factor(correction, weight_log, actions)
    return factor


def _factor(correction: Correction, weight_log: Tensor, actions: Tensor) -> Tensor:
    """(M,) of one correction."""
    match correction:
        case TruncatedIS(level="token", cap=cap):
            return truncated_is(weight_log, cap=cap)
        case TruncatedIS(cap=cap):
            return truncated_is(sum_over_actions(weight_log, actions), cap=cap)
        case MaskedIS(low=low, high=high):
            return masked_is(weight_log, low=low, high=high)
        case GeometricRejection(low=low, high=high):
            return geometric(weight_log, actions, low=low, high=high)
        case never:
            assert_never(never)
