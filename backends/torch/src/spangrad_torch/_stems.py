"""Which rows share a stem: a beginning whose keys and values are held once for all of them.

Decoding reads the keys and values of every row at every token, so a prompt that eight rows share would be read eight times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    common = [common_prefix(sequences[a], sequences[b]) for a, b in zip(order[:-1], order[1:], strict=True)]
    for start, stop, length in _best_cut(common, 0, len(order), cost)[1]:
        members = order[start:stop]
        has = sum(len(stem.ids) for i in members if (stem := stems[i]) is not None)
        if _saved(start, stop, length, cost) > has:
            stem = make(members[0], length)
            for i in members:
                stems[i] = stem
    return stems


def _longest(sequence: IntArray, stems: Sequence[Stem]) -> Stem | None:
    """The longest stem that a sequence begins with."""
    fitting = [stem for stem in stems if common_prefix(stem.ids, sequence) == len(stem.ids)]
    return max(fitting, key=lambda stem: len(stem.ids), default=None)


def _saved(start: int, stop: int, length: int, cost: int) -> int:
    """How many positions less are read when so many sequences share so long a beginning."""
    return (stop - start - 1) * length - cost


def _best_cut(common: Sequence[int], start: int, stop: int, cost: int) -> tuple[int, list[tuple[int, int, int]]]:
    """What sharing saves, and by which (start, stop, length), when sorted sequences are cut where they have least in common.

    Args:
        common: tokens that each sequence has in common with the next one.
        start: first sequence looked at.
        stop: sequence after the last one.
        cost: of a stem.
    """
    here = common[start : stop - 1]
    if sum(here) <= cost:  # no cut can save more than all that neighbours have in common
        return 0, []
    length = min(here)
    saved = _saved(start, stop, length, cost)
    whole = (saved, [(start, stop, length)]) if saved > 0 else (0, [])
    if saved >= sum(here) - length - 2 * cost:
        return whole
    middle = start + here.index(length) + 1
    left, right = _best_cut(common, start, middle, cost), _best_cut(common, middle, stop, cost)
    return max(whole, (left[0] + right[0], left[1] + right[1]), key=lambda found: found[0])
