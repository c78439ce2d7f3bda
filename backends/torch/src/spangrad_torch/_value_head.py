"""A learnt value: one number for every place where the model predicts a token."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class ValueHead(nn.Module):
    """A linear read-out of hidden states, in fp32, that begins at 0.

    A state is scaled to length 1 first: models differ in the size of their hidden states by orders of magnitude, and so one
    learning rate does for all. A read-out is enough, for the states are those that the next token is told from.

    Args:
        width: H, of the hidden states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """One for the states that the model's own head reads."""
        width = model.get_output_embeddings().weight.shape[-1]  # type: ignore[no-untyped-call]  # transformers does not annotate it
        return cls(width).to(model.device)

    def forward(self, states: Tensor) -> Tensor:
        """(..., H) hidden states of any type to (...,) values."""
        with torch.autocast(states.device.type, enabled=False):
            value: Tensor = self.linear(nn.functional.normalize(states.float(), dim=-1)).squeeze(-1)
        return value
