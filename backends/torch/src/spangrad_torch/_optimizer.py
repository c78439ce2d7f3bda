"""AdamW (arXiv 1711.05101) with a bound on the gradient's norm, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spangrad.backend import CriticSettings
from spangrad_torch._not_finite import not_finite
from spangrad_torch._options import TorchOptions


class Optimizer:
    """Moves the trained weights.

    Args:
        trained: weights by name.
        options: betas, weight_decay, max_grad_norm.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter], options: TorchOptions) -> None:
        self._trained = dict(trained)
        self._max_norm = options.max_grad_norm
        matrices = [weight for weight in trained.values() if weight.ndim > 1]
        others = [weight for weight in trained.values() if weight.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},  # shrinking norms and biases regularises nothing
        ]
        self._adamw = torch.optim.AdamW([group for group in groups if group["params"]], betas=options.betas, fused=True)
        self.steps = 0
        """Steps taken."""

    def bound_gradient(self, critic: CriticSettings | None) -> float:
        """Scales the accumulated gradient down to the greatest norm allowed.

        Args:
            critic: how the value is learnt that is part of the loss; None where none is.

        Returns:
            The norm before.

        Raises:
            BackendError: it is not finite.
        """
        norm = float(nn.utils.clip_grad_norm_(self._trained.values(), self._max_norm))
        if not math.isfinite(norm):
            raise not_finite("The gradient of this batch is not finite", critic)
        return norm

    def step(self, learning_rate: float) -> None:
        """One step with the bounded gradient."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.steps += 1

    def restart(self) -> None:
        """Forgets the moments."""
        self._adamw.state.clear()

    def drop_gradient(self) -> None:
        """Forgets what was accumulated, and its memory."""
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> Mapping[str, Tensor]:
        """The moments and step counts, keys "<quantity>/<weight>"; empty before the first step. Not copied."""
        return {
            f"{quantity}/{name}": value
            for name, weight in self._trained.items()
            for quantity, value in self._adamw.state.get(weight, {}).items()
        }

    def restore(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Takes over what `state` gave."""
        self.drop_gradient()
        self._adamw.state.clear()
        for key, value in state.items():
            quantity, _, name = key.partition("/")
            weight = self._trained[name]
            self._adamw.state[weight][quantity] = value.to(weight.device)
        self.steps = steps
