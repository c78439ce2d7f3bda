"""Attention of our own in a model of transformers: a forward pass may say how its queries attend, else they do as they always did."""

from __future__ import annotations

from typing import Any, Final, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME: Final = "spangrad_tree"
_UNKNOWN_HERE: Final = ("s_aux", "softcap", "position_bias")
"""Arguments that change what attention computes; given any of them, the model's usual function is used."""


class Attending(Protocol):
    """How the queries of a forward pass attend; given to the model as the argument `attending`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """(B, H, N, D) queries, with what the cache gave as keys and values, to (B, N, H, D)."""


def takes_attending(model: PreTrainedModel) -> bool:
    """Whether a model was prepared by `let_attend`. Only on a CPU, for which our ways to attend are made."""
    return model.device.type == "cpu" and model.config.get_text_config()._attn_implementation == _NAME  # noqa: SLF001 - transformers' only name for it


def let_attend(model: PreTrainedModel) -> None:
    """Lets a model that attends with torch's scaled dot product take `attending`; without it, it computes what it always did."""
    if model.config.get_text_config()._attn_implementation != "sdpa":  # noqa: SLF001 - transformers' only name for it
        return
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    attending: Attending | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers' attention layers call: (B, H, N, D) queries to (B, N, H, D)."""
    if attending is None or dropout or any(options.get(name) is not None for name in _UNKNOWN_HERE):
        result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    return attending.attend(query, key, value, scaling), None
