"""Which rows share a stem: a beginning whose keys and values are held once for all of them.

Decoding reads the keys and values of every row at every token, so a prompt that eight rows share would be read eight times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch

from spangrad.transitions import IntArray
from spangrad_torch._prefill import common_prefix

COST: Final = 256
"""A stem costs about as much time as this many positions of a single row: what it saves has to be more."""


@dataclass(frozen=True, eq=False, slots=True)
class Stem:
    """A beginning that rows share; it lives as long as they do."""

    ids: IntArray
    """(P,) its tokens."""
    key_values: torch.Tensor
    """(2L, K, P, D) as `RowSlots` has them, without the rows."""


def choose_stems(
    sequences: Sequence[IntArray], living: Sequence[Stem], make: Callable[[int, int], Stem], *, cost: int = COST
) -> list[Stem | None]:
    """A stem for each sequence, or none: new ones where they save more than those there are.

    Args:
        sequences: (S) token ids of rows that start.
        living: stems of other rows.
        make: gives the stem of the first `length` ids of sequence `i`, called with `(i, length)`.
        cost: of a new stem, in positions.
    """
    stems = [_longest(sequence, living) for sequence in sequences]
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tolist())
    common = [common_prefix(sequences[a], sequences[b]) for a, b in pairwise(order)]
    for start, stop, length in _best_cut(common, cost):
        members = order[start:stop]
        has = sum(len(stem.ids) for i in members if (stem := stems[i]) is not None)
        if _saved(len(members), length, cost) > has:
            stem = make(members[0], length)
            for i in members:
                stems[i] = stem
    return stems


def _longest(sequence: IntArray, stems: Sequence[Stem]) -> Stem | None:
    """The longest stem that a sequence begins with."""
    fitting = [stem for stem in stems if common_prefix(stem.ids, sequence) == len(stem.ids)]
    return max(fitting, key=lambda stem: len(stem.ids), default=None)


def _saved(rows: int, length: int, cost: int) -> int:
    """How many positions less are read when so many rows share so long a beginning."""
    return (rows - 1) * length - cost


def _best_cut(common: Sequence[int], cost: int) -> list[tuple[int, int, int]]:
    """Cuts sorted sequences into those that share a stem so that they save most together.

    Args:
        common: tokens that each sequence has in common with the next one.
        cost: of a stem.

    Returns:
        Start, stop and the stem's length of each part that has one.
    """
    best: list[tuple[int, list[tuple[int, int, int]]]] = [(0, []), (0, [])]
    """By number of sequences: what they save, and how."""
    for stop in range(2, len(common) + 2):
        found, length = best[stop - 1], common[stop - 2]
        for start in range(stop - 2, -1, -1):
            length = min(length, common[start])
            saved = best[start][0] + _saved(stop - start, length, cost)
            if saved > found[0]:
                found = saved, [*best[start][1], (start, stop, length)]
        best.append(found)
    return best[len(common) + 1][1]
