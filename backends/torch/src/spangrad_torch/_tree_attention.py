"""Attention over a prefix tree, at the cost of its paths instead of all pairs of nodes.

Each node attends only to its ancestors, so of a pack's N x N scores few are needed. The nodes are cut into runs of at most
`_RUN` that follow one another on a path; each run attends to the path it ends on. All runs are computed in one batch, the
heads that share keys (grouped queries) as further queries of the run. On a CPU this is several times faster than the dense
mask, forward and backward; a GPU does the dense mask well enough. The result is the same up to rounding.

Letters: N nodes, S runs, Q places of a run, L places of the longest path, H heads, K key-value heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from spangrad.transitions import IntArray, PrefixTreePack
from spangrad_torch._attention import takes_attending

_RUN: Final = 32
"""Longer runs make larger, faster products; shorter ones waste fewer places."""
_MUST_GAIN: Final = 2
"""How many times fewer scores than N x N there must be to pay for the copying."""


@dataclass(frozen=True)
class TreeRuns:
    """A pack cut into runs."""

    queries: Tensor
    """(S Q,) the node at each place; unused places repeat the run's first node."""
    keys: Tensor
    """(S L,) the nodes of the path each run ends on, from the root; unused places hold node 0 and are masked."""
    mask: Tensor
    """(S, 1, G Q, L) true where attention is allowed."""
    places: Tensor
    """(N,) the place, among S Q, of each node."""

    def pay(self, nodes: int) -> bool:
        """Whether attending by runs is faster than to all of so many nodes under a dense mask."""
        scores = len(self.queries) * (len(self.keys) // len(self.mask))
        return scores * _MUST_GAIN <= len(self.places) * nodes

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Of one pack or prefill: (1, H, N, D) queries and (1, K, M, D) keys and values to (1, N, H, D)."""
        # In bf16 the small products of the runs are slower than in fp32, and less exact.
        with torch.autocast(query.device.type, enabled=False):
            attended = run_attention(query[0].float(), key[0].float(), value[0].float(), self, scaling)
        return attended[None].to(query.dtype)


def cut_into_runs(pack: PrefixTreePack, *, groups: int, run: int = _RUN) -> TreeRuns:
    """Cuts a pack's nodes into runs.

    Args:
        pack: N nodes in depth-first order.
        groups: heads per key-value head (G).
        run: most nodes of a run (Q).
    """
    positions = pack.positions
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)  # where a node is not the child of the one before it
    path = np.zeros(int(positions.max()) + 1, np.int64)

    def path_to(start: int, end: int) -> IntArray:
        path[positions[start:end]] = np.arange(start, end)
        return path[: positions[end - 1] + 1].copy()

    return make_runs(positions, starts, path_to, groups=groups, run=run)


def make_runs(
    positions: IntArray,
    starts: IntArray,
    path_to: Callable[[int, int], IntArray],
    *,
    groups: int,
    run: int = _RUN,
) -> TreeRuns:
    """Runs of nodes whose chains are known.

    Args:
        positions: (N,) depth of each node.
        starts: the nodes that are not children of the node before them; the first is one of them.
        path_to: called with the first node of each run and the node after its last, in order; gives the keys' nodes
            from the root to the last of the run.
        groups: heads per key-value head (G).
        run: most nodes of a run (Q).
    """
    chains = zip(starts.tolist(), [*starts[1:].tolist(), len(positions)], strict=True)
    runs = [(start, min(start + run, end)) for begin, end in chains for start in range(begin, end, run)]
    length = int(positions.max()) + 1
    queries = np.empty((len(runs), run), np.int64)
    keys = np.zeros((len(runs), length), np.int64)
    places = np.empty(len(positions), np.int64)
    for row, (start, end) in enumerate(runs):
        keys[row, : positions[end - 1] + 1] = path_to(start, end)
        queries[row] = start
        queries[row, : end - start] = np.arange(start, end)
        places[start:end] = row * run + np.arange(end - start)
    mask = np.arange(length) <= positions[queries][:, :, None]  # (S, Q, L)
    return TreeRuns(
        queries=torch.from_numpy(queries.reshape(-1)),
        keys=torch.from_numpy(keys.reshape(-1)),
        mask=torch.from_numpy(np.tile(mask, (1, groups, 1)))[:, None],
        places=torch.from_numpy(places),
    )


def worthwhile_runs(model: PreTrainedModel, pack: PrefixTreePack) -> TreeRuns | None:
    """The pack's runs if attending by runs is faster than by the dense mask, for a model prepared by `let_attend`."""
    if not takes_attending(model):
        return None
    runs = cut_into_runs(pack, groups=heads_per_key(model))
    return runs if runs.pay(len(pack)) else None


def heads_per_key(model: PreTrainedModel) -> int:
    """How many query heads share a key-value head."""
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    return heads // (getattr(config, "num_key_value_heads", None) or heads)


def run_attention(query: Tensor, key: Tensor, value: Tensor, runs: TreeRuns, scaling: float | None) -> Tensor:
    """Attention of the nodes to their ancestors and themselves.

    Args:
        query: (H, N, D)
        key: (K, M, D) of these nodes and, in a prefill, of those before them.
        value: (K, M, D)
        runs: of the N nodes, with G = H / K.
        scaling: of the scores; None is D ** -0.5.

    Returns:
        (N, H, D)
    """
    heads, nodes, size = query.shape
    kv_heads, rows = key.shape[0], runs.mask.shape[0]
    groups = heads // kv_heads

    def gathered(tensor: Tensor) -> Tensor:  # (K, M, D) -> (S, K, L, D)
        flat = tensor.transpose(0, 1).reshape(-1, kv_heads * size)
        return flat.index_select(0, runs.keys).view(rows, -1, kv_heads, size).transpose(1, 2)

    flat = query.transpose(0, 1).reshape(nodes, heads * size).index_select(0, runs.queries)
    queries = flat.view(rows, -1, kv_heads, groups, size).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, size)
    attended = functional.scaled_dot_product_attention(
        queries, gathered(key), gathered(value), attn_mask=runs.mask, scale=scaling
    )
    places = attended.view(rows, kv_heads, groups, -1, size).permute(0, 3, 1, 2, 4).reshape(-1, heads * size)
    return places.index_select(0, runs.places).view(nodes, heads, size)
