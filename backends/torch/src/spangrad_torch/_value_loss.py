"""The loss of a learnt value, and how well it told what came."""

from __future__ import annotations

import torch
from torch import Tensor

from spangrad.backend import CriticSettings
from spangrad.transitions import FloatArray, PrefixTreePack
from spangrad_torch._forward import Predictions
from spangrad_torch._sums import Sums
from spangrad_torch._value_head import ValueHead
from spangrad_torch._work import Work, of_tokens
from spangrad_torch.losses import value_loss


def pack_value_loss(
    head: ValueHead, work: Work, pack: PrefixTreePack, predictions: Predictions, sums: Sums
) -> Tensor | float:
    """() the weighted value loss of a pack, with gradient, 0 where no value is learnt; adds the pack's figures to `sums`.

    The head's gradient is whole; what goes on into the model is the critic's `coefficient` of it.
    """
    targets, settings = work.value_targets, critic_of(work)
    if targets is None or settings is None:
        return 0.0
    places, weights = work.valued(pack, targets)
    rows = predictions.row[torch.from_numpy(places).to(predictions.row.device)]
    values = head(_partly(predictions.states, settings.coefficient))[rows]
    wanted, before = (_like(values, of_tokens(each, pack, places)) for each in (targets.targets, targets.before))
    losses, held = value_loss(values, wanted, before, clip=settings.clip)
    sums.values(wanted, values, losses, None if settings.clip is None else held)
    return (_like(values, weights) * losses).sum()


def critic_of(work: Work) -> CriticSettings | None:
    """How the value is learnt that is part of the work's loss; None where none is."""
    return None if work.loss is None or work.value_targets is None else work.loss.critic


def _partly(states: Tensor, share: float) -> Tensor:
    """The states, through which only a share of the gradient passes."""
    whole = states.detach()
    return whole if share == 0 else whole + share * (states - whole)


def _like(tensor: Tensor, values: FloatArray) -> Tensor:
    return torch.from_numpy(values).to(tensor)
