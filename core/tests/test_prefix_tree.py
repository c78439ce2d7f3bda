"""Every sequence can be read back from the tree, nothing is computed twice within a pack, and cuts cost as little as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.transitions import PackedSequences, PrefixTreePack, pack_sequences


@dataclass(frozen=True)
class Tokens:
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]


few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
batches = st.lists(st.builds(Tokens, few_tokens, few_tokens), max_size=8)


def path_to(pack: PrefixTreePack, node: int) -> list[int]:
    """The nodes from the root to `node`, by the intervals alone."""
    return [j for j in range(node + 1) if node < pack.subtree_end[j]]


def inputs_of(batch: Sequence[Tokens]) -> list[tuple[int, ...]]:
    return [s.prompt_ids + s.action_ids[:-1] for s in batch]


def distinct_prefixes(batch: Sequence[Tokens]) -> set[tuple[int, ...]]:
    """Every non-empty beginning of what the model reads."""
    return {ids[:end] for ids in inputs_of(batch) for end in range(1, len(ids) + 1)}


def assert_reads_back(batch: Sequence[Tokens], packed: PackedSequences) -> None:
    found: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
    for pack in packed.packs:
        for source, target, owner, offset in zip(pack.sources, pack.targets, pack.owners, pack.offsets, strict=True):
            prefix = tuple(pack.token_ids[path_to(pack, source)].tolist())
            assert (owner, offset) not in found
            found[int(owner), int(offset)] = (prefix, int(target))
    assert found == {
        (row, offset): (s.prompt_ids + s.action_ids[:offset], s.action_ids[offset])
        for row, s in enumerate(batch)
        for offset in range(len(s.action_ids))
    }


@given(batches, st.integers(1, 40))
def test_every_action_token_is_predicted_by_exactly_its_own_prefix(batch: list[Tokens], budget: int) -> None:
    assert_reads_back(batch, pack_sequences(batch, budget=budget))


@given(batches)
def test_sequences_laid_out_alone_read_back_as_well_and_never_branch(batch: list[Tokens]) -> None:
    packed = pack_sequences(batch, budget=1, share=False)
    assert_reads_back(batch, packed)
    assert [len(pack) for pack in packed.packs] == [len(ids) for ids in sorted(inputs_of(batch))]
    assert all(pack.is_path for pack in packed.packs)


@given(batches, st.integers(1, 40))
def test_no_pack_computes_a_prefix_twice_and_positions_are_depths(batch: list[Tokens], budget: int) -> None:
    for pack in pack_sequences(batch, budget=budget).packs:
        prefixes = [tuple(pack.token_ids[path_to(pack, node)].tolist()) for node in range(len(pack))]
        assert len(set(prefixes)) == len(prefixes)
        assert [len(prefix) - 1 for prefix in prefixes] == pack.positions.tolist()


@given(batches, st.integers(1, 40))
def test_packs_keep_to_the_budget_unless_one_sequence_alone_exceeds_it(batch: list[Tokens], budget: int) -> None:
    longest = max((len(ids) for ids in inputs_of(batch)), default=0)
    assert all(len(pack) <= max(budget, longest) for pack in pack_sequences(batch, budget=budget).packs)


@given(batches, st.integers(1, 40))
def test_token_counts_are_those_of_the_flat_and_of_the_shared_layout(batch: list[Tokens], budget: int) -> None:
    packed = pack_sequences(batch, budget=budget)
    assert packed.flat_tokens == sum(map(len, inputs_of(batch)))
    assert packed.distinct_tokens == len(distinct_prefixes(batch))
    assert packed.computed_tokens == sum(len(pack) for pack in packed.packs)
    assert packed.repeated_tokens == packed.computed_tokens - packed.distinct_tokens >= 0


@given(batches.filter(lambda batch: len(batch) > 0), st.integers(1, 40))
def test_no_other_cut_of_the_sorted_sequences_computes_fewer_tokens(batch: list[Tokens], budget: int) -> None:
    paths = sorted(batch, key=lambda s: s.prompt_ids + s.action_ids[:-1])
    limit = max(budget, *(len(ids) for ids in inputs_of(batch)), 1)

    def cost(cuts: tuple[int, ...]) -> tuple[int, int] | None:
        borders = [0, *cuts, len(paths)]
        sizes = [len(distinct_prefixes(paths[start:end])) for start, end in pairwise(borders)]
        return (sum(sizes), len(sizes)) if max(sizes) <= limit else None

    inner = range(1, len(paths))
    costs = [cost(cuts) for count in range(len(paths)) for cuts in combinations(inner, count)]
    packed = pack_sequences(batch, budget=budget)
    assert (packed.computed_tokens, len(packed.packs)) == min(c for c in costs if c is not None)


@given(batches, st.integers(1, 40))
def test_attention_reaches_ancestors_and_the_node_itself_only(batch: list[Tokens], budget: int) -> None:
    for pack in pack_sequences(batch, budget=budget).packs:
        mask = pack.attention_mask()
        assert [np.flatnonzero(row).tolist() for row in mask] == [path_to(pack, node) for node in range(len(pack))]


def test_a_group_and_its_second_calls_share_what_they_have_in_common() -> None:
    prompt = (7, 8, 9)
    batch = [
        Tokens(prompt, (1, 2)),  # nodes 7 8 9 1: the last token predicts nothing
        Tokens((*prompt, 1, 2, 5), (3,)),  # goes on from the first: 2 5 beside the shared 7 8 9 1
        Tokens(prompt, (4, 2)),  # node 4
        Tokens(prompt, (4, 2)),  # the same again
    ]
    packed = pack_sequences(batch, budget=100)
    (pack,) = packed.packs
    assert pack.token_ids.tolist() == [7, 8, 9, 1, 2, 5, 4]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 5, 3]
    assert pack.subtree_end.tolist() == [7, 7, 7, 6, 6, 6, 7]
    entries = zip(pack.owners, pack.sources, pack.targets, strict=True)
    assert sorted((int(o), int(s), int(t)) for o, s, t in entries) == [
        (0, 2, 1),
        (0, 3, 2),
        (1, 5, 3),
        (2, 2, 4),
        (2, 6, 2),
        (3, 2, 4),
        (3, 6, 2),
    ]
    assert (packed.flat_tokens, packed.distinct_tokens, packed.computed_tokens) == (18, 7, 7)


def test_a_tree_beyond_the_budget_repeats_the_shared_prefix_in_each_pack() -> None:
    batch = [Tokens((1, 2, 3), (answer, 0)) for answer in (4, 5, 6, 7)]
    packed = pack_sequences(batch, budget=5)
    assert [len(pack) for pack in packed.packs] == [5, 5]
    assert (packed.distinct_tokens, packed.computed_tokens, packed.repeated_tokens) == (7, 10, 3)


def test_nothing_to_lay_out_gives_no_packs() -> None:
    packed = pack_sequences([], budget=10)
    assert (packed.packs, packed.flat_tokens, packed.computed_tokens) == ((), 0, 0)


@pytest.mark.parametrize(
    ("batch", "budget", "what"),
    [
        ([Tokens((1,), (2,)), Tokens((), (2,))], 5, "sequence 1 has an empty prompt"),
        ([Tokens((1,), ())], 5, "sequence 0 has an empty action"),
        ([Tokens((1,), (2,))], 0, "budget of a pack is 0"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(batch: list[Tokens], budget: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        pack_sequences(batch, budget=budget)
