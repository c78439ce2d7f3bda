"""What has to be computed to start a number of sequences, each shared token once.

The sequences are laid into a tree: a token that several of them share, preceded by the same tokens, is one node. Nodes whose
keys and values are cached are read, the others are computed in one pass under a mask that shows each node its ancestors.
Letters: S sequences, C cached nodes, N computed nodes; M = C + N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spangrad.transitions import BoolArray, IntArray
from spangrad_torch._tree_attention import TreeRuns, make_runs


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The tree of some sequences. Nodes stand in the order: cached ones, then computed ones, each depth first."""

    token_ids: IntArray
    """(N,) of the computed nodes."""
    depths: IntArray
    """(N,) position of each computed node in its sequences, from 0."""
    cached: IntArray
    """(C,) where in the cache the cached nodes lie."""
    paths: tuple[IntArray, ...]
    """(S) for each sequence the nodes of its tokens, in [0, M)."""
    last: IntArray
    """(S,) the node of each sequence's last token, counted among the computed ones."""
    enter: IntArray
    """(M,) rank of each node in the depth-first walk of the whole tree."""
    leave: IntArray
    """(M,) rank of the first node after its subtree."""

    def mask(self, start: int, stop: int) -> BoolArray:
        """(stop - start, C + stop) which nodes each of the computed nodes `start` to `stop` attends to: ancestors and itself."""
        known = len(self.cached) + stop
        rank = self.enter[len(self.cached) + start : known, None]
        visible: BoolArray = (self.enter[None, :known] <= rank) & (rank < self.leave[None, :known])
        return visible

    def runs(self, start: int, stop: int, *, groups: int) -> TreeRuns:
        """The computed nodes `start` to `stop` as runs over paths of all C + stop nodes; `groups` heads share keys."""
        known = len(self.cached)
        depths, ranks = self.depths[start:stop], self.enter[known + start : known + stop]
        # The next node of the whole tree, and deeper than this one, is its child.
        follows = (np.diff(depths, prepend=-2) == 1) & (np.diff(ranks, prepend=-2) == 1)
        owner = np.empty(known + len(self.token_ids), np.int64)
        for i, path in enumerate(self.paths):
            owner[path] = i

        def path_to(_: int, end: int) -> IntArray:
            path: IntArray = self.paths[int(owner[known + start + end - 1])]
            return path[: int(depths[end - 1]) + 1]

        return make_runs(depths, np.flatnonzero(~follows), path_to, groups=groups)


def plan_prefill(sequences: Sequence[IntArray], cached: Sequence[IntArray]) -> PrefillPlan:
    """Lays sequences into a tree. Each one's last token is computed even if it is cached, since its logits are needed.

    Args:
        sequences: (S) token ids, each at least one.
        cached: (S) for each sequence where the first tokens' keys and values lie in the cache; shorter than the sequence.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tolist())
    upper = sum(len(sequence) for sequence in sequences)
    tokens, depths = np.empty(upper, np.int64), np.empty(upper, np.int64)
    leave, place = np.empty(upper, np.int64), np.full(upper, -1, np.int64)
    needed = np.zeros(upper, np.bool_)
    walks: dict[int, IntArray] = {}
    walk, previous, count = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for i in order:
        sequence = sequences[i]
        shared = common_prefix(previous, sequence)
        leave[walk[shared:]] = count
        fresh = np.arange(count, count + len(sequence) - shared)
        tokens[fresh], depths[fresh] = sequence[shared:], np.arange(shared, len(sequence))
        walk, previous, count = np.concatenate([walk[:shared], fresh]), sequence, count + len(fresh)
        place[walk[: len(cached[i])]] = cached[i]
        needed[walk[-1]] = True
        walks[i] = walk
    leave[walk] = count
    is_cached = (place[:count] >= 0) & ~needed[:count]
    nodes = np.concatenate([np.flatnonzero(is_cached), np.flatnonzero(~is_cached)])
    position = np.empty(count, np.int64)
    position[nodes] = np.arange(count)
    known = int(is_cached.sum())
    return PrefillPlan(
        token_ids=tokens[nodes[known:]],
        depths=depths[nodes[known:]],
        cached=place[nodes[:known]],
        paths=tuple(position[walks[i]] for i in range(len(sequences))),
        last=np.array([position[walks[i][-1]] - known for i in range(len(sequences))], dtype=np.int64),
        enter=nodes,
        leave=leave[nodes],
    )


def common_prefix(a: IntArray, b: IntArray) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
