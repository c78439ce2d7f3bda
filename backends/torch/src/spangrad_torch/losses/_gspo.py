"""The ratios of GSPO (arXiv 2507.18071), which `ppo_clip` then clips."""

from __future__ import annotations

from torch import Tensor

from spangrad_torch.losses._actions import mean_over_actions


def action_ratio(ratio_log: Tensor, actions: Tensor) -> Tensor:
    """(M,) log of each token's action's ratio, the geometric mean of its tokens' (eq. 7).

    Args:
        ratio_log: (M,) of tokens.
        actions: (M,) as in `sum_over_actions`.
    """
    return mean_over_actions(ratio_log, actions)


def token_ratio(ratio_log: Tensor, actions: Tensor) -> Tensor:
    """(M,) the action's ratio by value, but the gradient of the token's own log-probability (GSPO-token, eq. 14)."""
    return mean_over_actions(ratio_log, actions).detach() + ratio_log - ratio_log.detach()
