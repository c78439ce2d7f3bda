"""The loss of SAPO."""

from __future__ import annotations

import torch
from torch import Tensor


def sapo(ratio_log: Tensor, advantage: Tensor, *, tau_positive: float, tau_negative: float) -> Tensor:
    """Minus the advantage times a soft gate of the ratio (arXiv 2511.20347, eqs. 5-6).

    The gate (4 / tau) sigmoid(tau (r - 1)) has the slope 1 at r = 1 and flattens to both sides.

    Args:
        ratio_log: (M,) from `log_ratio`.
        advantage: (M,)
        tau_positive: temperature where the advantage is above 0.
        tau_negative: temperature elsewhere.
    """
    tau = torch.where(advantage > 0, tau_positive, tau_negative).to(advantage)
    return -(4.0 / tau) * torch.sigmoid(tau * (ratio_log.exp() - 1.0)) * advantage
