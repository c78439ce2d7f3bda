"""The loss of a learnt value."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, targets: Tensor, before: Tensor, *, clip: float | None) -> tuple[Tensor, Tensor]:
    """(V,) losses 1/2 (V - target)^2, at least those of values held to `clip` of what they were; (V,) where that held.

    Args:
        values: (V,) with gradient.
        targets: (V,)
        before: (V,) the values at the start of the step.
        clip: in the unit of the rewards; None for no bound.
    """
    plain = (values - targets) ** 2
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    # clamped as it is: a difference added again would be another number where nothing is held
    bounded = (values.clamp(before - clip, before + clip) - targets) ** 2
    return 0.5 * torch.maximum(plain, bounded), bounded > plain
