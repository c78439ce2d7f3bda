"""Sequences laid out so that each distinct (prefix, token) is computed once.

The prompts of a group are equal and the calls of a rollout extend each other, so most of a batch's tokens repeat. Sorted
sequences are a prefix tree already: each adds to the tree only what goes beyond its longest common prefix with the one before
it. A *pack* is a run of sorted sequences; its nodes are numbered depth first, so the descendants of node j are the nodes
j .. subtree_end[j] - 1, and i may attend to j exactly when j <= i < subtree_end[j].

A path from root to leaf is never cut: where a tree exceeds the budget, the shared prefix is computed again in the next pack.
The cuts are placed to repeat as few tokens as possible. The last token of an action is predicted but predicts nothing, so it
is no node.

Axis letters: S sequences, N nodes of a pack, M action tokens of a pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from spangrad.transitions._transition import BoolArray, IntArray


class TokenSequence(Protocol):
    """What is laid out: a `Transition`, or anything else with these two."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """At least one token."""
        ...

    @property
    def action_ids(self) -> tuple[int, ...]:
        """At least one token."""
        ...


@dataclass(frozen=True)
class PrefixTreePack:
    """Some sequences as one forest, for one forward pass."""

    token_ids: IntArray
    """(N,)"""
    positions: IntArray
    """(N,) depth of each node, which is its position in every sequence it belongs to."""
    subtree_end: IntArray
    """(N,) one past the last descendant of each node."""
    sources: IntArray
    """(M,) the node that predicts each action token."""
    targets: IntArray
    """(M,) the action tokens."""
    owners: IntArray
    """(M,) which of the sequences given to `pack_sequences` each action token belongs to. Shared tokens have an entry for each."""
    offsets: IntArray
    """(M,) position of each action token within its action."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_path(self) -> bool:
        """Whether the pack is one sequence without branches, for which a plain causal mask will do."""
        return bool(np.all(self.subtree_end == len(self)))

    def attention_mask(self) -> BoolArray:
        """(N, N) true where the row's node may attend to the column's: itself and its ancestors."""
        node = np.arange(len(self))
        return (node[None, :] <= node[:, None]) & (node[:, None] < self.subtree_end[None, :])


@dataclass(frozen=True)
class PackedSequences:
    """A batch's packs, and what the sharing saved."""

    packs: tuple[PrefixTreePack, ...]
    flat_tokens: int
    """Tokens to compute without sharing."""
    distinct_tokens: int
    """Tokens to compute if all sequences shared one pack."""

    @property
    def computed_tokens(self) -> int:
        """Tokens the packs compute: the distinct ones and the prefixes repeated across packs."""
        return sum(len(pack) for pack in self.packs)

    @property
    def repeated_tokens(self) -> int:
        """Tokens computed again because their tree was spread over packs."""
        return self.computed_tokens - self.distinct_tokens


def pack_sequences(sequences: Sequence[TokenSequence], *, budget: int, share: bool = True) -> PackedSequences:
    """Lays sequences into as few tokens as the budget allows.

    Args:
        sequences: (S,) prompts and actions.
        budget: most nodes of a pack; raised to the longest sequence, which has to be computed whole anyway.
        share: False puts each sequence alone into a pack: for models whose attention takes no tree mask.

    Raises:
        ValueError: an empty prompt or action, or a budget below 1.
    """
    if budget < 1:
        raise ValueError(f"the token budget of a pack is {budget}, but must be at least 1")
    for row, sequence in enumerate(sequences):
        if not sequence.prompt_ids or not sequence.action_ids:
            raise ValueError(f"sequence {row} has an empty {'prompt' if not sequence.prompt_ids else 'action'}")
    inputs = [sequence.prompt_ids + sequence.action_ids[:-1] for sequence in sequences]
    order = sorted(range(len(inputs)), key=inputs.__getitem__)
    paths = [np.array(inputs[row], dtype=np.int64) for row in order]
    lengths = [len(path) for path in paths]
    shared = [0, *(_common_prefix(left, right) for left, right in pairwise(paths))][: len(paths)]
    cuts = _cheapest_cuts(lengths, shared, max(budget, *lengths, 1)) if share else list(range(len(paths) + 1))
    packs = (
        _build_pack([sequences[row] for row in order[start:end]], order[start:end], paths[start:end], shared[start:end])
        for start, end in pairwise(cuts)
    )
    return PackedSequences(tuple(packs), flat_tokens=sum(lengths), distinct_tokens=sum(lengths) - sum(shared))


def _common_prefix(left: IntArray, right: IntArray) -> int:
    """How many leading tokens two paths share."""
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    return int(np.argmax(differs)) if differs.any() else shorter


def _cheapest_cuts(lengths: Sequence[int], shared: Sequence[int], budget: int) -> list[int]:
    """Where the sorted sequences are cut into packs: the fewest computed tokens, then the fewest packs.

    Dynamic programming over the end of the last pack. The first sequence of a pack costs its whole length, each further one
    only what goes beyond its shared prefix.

    Args:
        lengths: (S,) tokens of each path.
        shared: (S,) tokens each path shares with the one before it; 0 for the first.
        budget: most tokens of a pack, at least the longest path.

    Returns:
        The packs' borders: 0, ..., S.
    """
    best = [(0, 0)]
    begins = [0]
    for end in range(1, len(lengths) + 1):
        candidates = []
        beyond = 0
        for start in range(end - 1, -1, -1):
            size = lengths[start] + beyond
            if size > budget:
                break
            tokens, packs = best[start]
            candidates.append((tokens + size, packs + 1, start))
            beyond += lengths[start] - shared[start]
        tokens, packs, start = min(candidates)
        best.append((tokens, packs))
        begins.append(start)
    cuts = [len(lengths)]
    while cuts[-1] > 0:
        cuts.append(begins[cuts[-1]])
    return cuts[::-1]


def _build_pack(
    sequences: Sequence[TokenSequence], rows: Sequence[int], paths: Sequence[IntArray], shared: Sequence[int]
) -> PrefixTreePack:
    """Numbers the nodes of some sorted sequences depth first, and finds the node that predicts each action token."""
    starts = [0, *shared[1:]]
    total = sum(len(path) - start for path, start in zip(paths, starts, strict=True))
    subtree_end = np.full(total, total, dtype=np.int64)
    branch = np.zeros(max(len(path) for path in paths), dtype=np.int64)  # node at each depth of the present path
    count = depth = 0
    sources = []
    for sequence, path, start in zip(sequences, paths, starts, strict=True):
        subtree_end[branch[start:depth]] = count  # the nodes the new path leaves have no further descendants
        depth = len(path)
        branch[start:depth] = np.arange(count, count + depth - start)
        count += depth - start
        sources.append(branch[len(sequence.prompt_ids) - 1 : depth].copy())
    actions = [np.array(sequence.action_ids, dtype=np.int64) for sequence in sequences]
    return PrefixTreePack(
        token_ids=np.concatenate([path[start:] for path, start in zip(paths, starts, strict=True)]),
        positions=np.concatenate([np.arange(start, len(path)) for path, start in zip(paths, starts, strict=True)]),
        subtree_end=subtree_end,
        sources=np.concatenate(sources),
        targets=np.concatenate(actions),
        owners=np.repeat(np.array(rows, dtype=np.int64), [len(action) for action in actions]),
        offsets=np.concatenate([np.arange(len(action)) for action in actions]),
    )
