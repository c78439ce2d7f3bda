"""Attention of rows that share stems, each stem's keys and values read once.

A row's softmax runs over its stem and its own positions. Each of the two is computed with a softmax of its own and the logarithm
of its sum; these say how much each counts (the merging of Hydragen, arXiv 2402.05099, and of FlashAttention's blocks). The
queries of all rows of a stem, and the heads that share its keys, are the rows of one product.

Letters: B rows, N of them with a stem, H heads, K key-value heads, G = H / K, D head size, R own positions, P of a stem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spangrad_torch._key_values import DecodeView, RowSlots
from spangrad_torch._stems import Stem


class StemView(DecodeView):
    """One new token for each row, as in `DecodeView`, and how it attends to its row's stem and own positions.

    Args:
        slots: where the rows' own keys and values lie.
        positions: (B,) where in them each row's new token goes.
        length: own positions to attend over, at most (R).
        stems: (B) of the rows, at least one of which has one.
    """

    def __init__(self, slots: RowSlots, positions: Tensor, length: int, stems: Sequence[Stem | None]) -> None:
        super().__init__(slots, positions, length)
        rows: dict[Stem, list[int]] = {}
        for row, stem in enumerate(stems):
            if stem is not None:
                rows.setdefault(stem, []).append(row)
        self._stems = [(stem.key_values, len(members)) for stem, members in rows.items()]
        order = torch.tensor([row for members in rows.values() for row in members])
        self._order = order
        self._places = torch.zeros(len(stems), dtype=torch.int64).index_copy(0, order, torch.arange(len(order)))
        self._without = torch.tensor([stem is None for stem in stems])[:, None, None, None]
        hidden = torch.arange(length) > positions[:, None]
        self._mask = torch.zeros(len(stems), 1, 1, length).masked_fill(hidden[:, None, None], float("-inf"))
        self._layer = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """As in `DecodeView`; `attend` is called for the same layer next."""
        self._layer = layer_idx
        return super().update(key_states, value_states, layer_idx)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """(B, H, 1, D) queries with the rows' own (B, K, R, D) keys and values to (B, 1, H, D)."""
        count, heads, _, size = query.shape
        query = (query * (size**-0.5 if scaling is None else scaling)).view(count, key.shape[1], -1, size)
        own = partial_attention(query, key, value, self._mask)
        return merge(self._to_stems(query), own).view(count, 1, heads, size)

    def _to_stems(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled queries (B, K, G, D) to what `partial_attention` gives for each row's stem."""
        _, kv_heads, groups, size = query.shape
        queries = query[self._order].transpose(0, 1).reshape(kv_heads, -1, size)  # (K, N G, D)
        of_stems = queries.split_with_sizes([members * groups for _, members in self._stems], dim=1)
        parts = [
            partial_attention(some, key_values[2 * self._layer], key_values[2 * self._layer + 1])
            for some, (key_values, _) in zip(of_stems, self._stems, strict=True)
        ]
        attended, log_sum = (
            torch.cat(tensors, 1).view(kv_heads, len(self._order), groups, -1).transpose(0, 1)[self._places]
            for tensors in zip(*parts, strict=True)
        )
        return attended, log_sum.masked_fill_(self._without, float("-inf"))


def partial_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention over some of the positions.

    Args:
        query: (..., Q, D) scaled.
        key: (..., L, D)
        value: (..., L, D)
        mask: added to the scores, as (..., Q, L); at least one position of each query is not -inf.

    Returns:
        (..., Q, D) weighted values and (..., Q, 1) logarithms of the sums of the exponentiated scores.
    """
    scores = query @ key.transpose(-1, -2)
    if mask is not None:
        scores += mask
    log_sum = scores.logsumexp(-1, keepdim=True)
    return scores.sub_(log_sum).exp_() @ value, log_sum


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """(..., Q, D) attention over two sets of positions together.

    Args:
        one: what `partial_attention` gives for the first; a logarithm of -inf leaves it out.
        other: and for the second.
    """
    return torch.lerp(other[0], one[0], torch.sigmoid(one[1] - other[1]))
