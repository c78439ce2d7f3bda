"""Policy losses, KL terms and corrections per token, as pure functions.

Shapes: (M,) action tokens of a pack, one entry per transition that owns the token. A token shared by several transitions has an
entry for each, so clipping sees each owner's own advantage and nothing needs merging. The tokens of one action are always in one
pack; `actions` (M,) says which are together.
"""

from spangrad_torch.losses._actions import mean_over_actions, sum_over_actions
from spangrad_torch.losses._cispo import cispo
from spangrad_torch.losses._clipping import dual_clip, is_clipped, ppo_clip
from spangrad_torch.losses._corrections import correction_factor, geometric, masked_is, truncated_is
from spangrad_torch.losses._gspo import action_ratio, token_ratio
from spangrad_torch.losses._kl import k1, k2, k3, kl_term
from spangrad_torch.losses._likelihood import negative_log_likelihood, reinforce
from spangrad_torch.losses._policy_loss import TokenLosses, policy_losses
from spangrad_torch.losses._ratio import log_ratio
from spangrad_torch.losses._sapo import sapo
from spangrad_torch.losses._value import value_loss

__all__ = [
    "TokenLosses",
    "action_ratio",
    "cispo",
    "correction_factor",
    "dual_clip",
    "geometric",
    "is_clipped",
    "k1",
    "k2",
    "k3",
    "kl_term",
    "log_ratio",
    "masked_is",
    "mean_over_actions",
    "negative_log_likelihood",
    "policy_losses",
    "ppo_clip",
    "reinforce",
    "sapo",
    "sum_over_actions",
    "token_ratio",
    "truncated_is",
    "value_loss",
]
