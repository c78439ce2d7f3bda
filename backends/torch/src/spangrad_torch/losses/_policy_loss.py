"""From a loss's settings to what its function makes of a pack's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from spangrad.backend import Cispo, DualClip, Gspo, GspoToken, PolicyLoss, PpoClip, Reinforce, Sapo
from spangrad_torch.losses._cispo import cispo
from spangrad_torch.losses._clipping import dual_clip, is_clipped, ppo_clip
from spangrad_torch.losses._gspo import action_ratio, token_ratio
from spangrad_torch.losses._likelihood import reinforce
from spangrad_torch.losses._sapo import sapo


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """What became of a pack's M action tokens."""

    losses: Tensor
    """(M,) with gradient."""
    ratio: Tensor | None = None
    """(M,) the ratio the loss looked at, of the token or of its action; None where it looks at none. No gradient."""
    clipped: Tensor | None = None
    """(M,) where the ratio was held: no gradient, or for CISPO a lesser weight. None where nothing ever is."""


def policy_losses(
    settings: PolicyLoss, logprob: Tensor, ratio_log: Tensor, advantage: Tensor, actions: Tensor
) -> TokenLosses:
    """The losses of that name.

    Args:
        settings: name and options.
        logprob: (M,) under the policy, with gradient.
        ratio_log: (M,) its log-ratio to the proximal policy, from `log_ratio`, with gradient.
        advantage: (M,)
        actions: (M,) as in `sum_over_actions`.
    """
    match settings:
        case PpoClip() | Gspo() | GspoToken():
            return _clipped(settings, _compared(settings, ratio_log, actions), advantage)
        case DualClip(clip_low=low, clip_high=high, bound=bound):
            losses = dual_clip(ratio_log, advantage, clip_low=low, clip_high=high, bound=bound)
            held = is_clipped(ratio_log, advantage, clip_low=low, clip_high=high, bound=bound)
            return TokenLosses(losses, ratio_log.detach().exp(), held)
        case Cispo(clip_low=low, clip_high=high):
            ratio = ratio_log.detach().exp()
            losses = cispo(logprob, ratio_log, advantage, clip_low=low, clip_high=high)
            return TokenLosses(losses, ratio, (ratio < 1.0 - low) | (ratio > 1.0 + high))
        case Sapo(tau_positive=positive, tau_negative=negative):
            losses = sapo(ratio_log, advantage, tau_positive=positive, tau_negative=negative)
            return TokenLosses(losses, ratio_log.detach().exp())
        case Reinforce():
            return TokenLosses(reinforce(logprob, advantage))
        case never:
            assert_never(never)


def _compared(settings: PpoClip | Gspo | GspoToken, ratio_log: Tensor, actions: Tensor) -> Tensor:
    """(M,) log of the ratio that is clipped."""
    match settings:
        case PpoClip():
            return ratio_log
        case Gspo():
            return action_ratio(ratio_log, actions)
        case GspoToken():
            return token_ratio(ratio_log, actions)


def _clipped(settings: PpoClip | Gspo | GspoToken, ratio_log: Tensor, advantage: Tensor) -> TokenLosses:
    """PPO's loss on some ratio."""
    low, high = settings.clip_low, settings.clip_high
    return TokenLosses(
        ppo_clip(ratio_log, advantage, clip_low=low, clip_high=high),
        ratio_log.detach().exp(),
        is_clipped(ratio_log.detach(), advantage, clip_low=low, clip_high=high),
    )
