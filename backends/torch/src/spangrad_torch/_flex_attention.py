"""Attention over a prefix tree by torch's FlexAttention: one fused kernel that passes over blocks no node may look at.

torch has its backward for GPUs only. The kernel is transformers' own; what is here is the tree's mask as FlexAttention takes it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spangrad.transitions import PrefixTreePack

_NAME: Final = "spangrad_flex"


def attend_by_flex(model: PreTrainedModel) -> None:
    """Lets a model that attends with torch's scaled dot product take `flex_mask`; without one it computes what it always did."""
    if model.config.get_text_config()._attn_implementation != "sdpa":  # noqa: SLF001 - transformers' only name for it
        return
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def flex_mask(model: PreTrainedModel, pack: PrefixTreePack) -> BlockMask | None:
    """The pack's mask for a model prepared by `attend_by_flex`: each of the N nodes sees its ancestors and itself. None for others."""
    if model.config.get_text_config()._attn_implementation != _NAME:  # noqa: SLF001 - transformers' only name for it
        return None
    subtree_end = torch.from_numpy(pack.subtree_end).to(model.device)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < subtree_end[key])

    nodes = len(pack)
    return create_block_mask(sees, None, None, nodes, nodes, device=str(model.device))


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers' attention layers call: (1, H, N, D) queries to (1, N, H, D)."""
    result: tuple[Tensor, Tensor | None]
    if not isinstance(attention_mask, BlockMask):
        result = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    # Autocast leaves rotated queries and keys in fp32, and the kernel wants one type.
    kind = torch.get_autocast_dtype(query.device.type) if torch.is_autocast_enabled(query.device.type) else value.dtype
    attended, _ = flex_attention_forward(
        module, query.to(kind), key.to(kind), value.to(kind), attention_mask, **options
    )
    return attended.to(query.dtype), None
