"""Which rows share a stem, attention over stems against plain attention, and answers drawn with and without them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from spangrad.backend import SamplingParams
from spangrad.transitions import IntArray
from spangrad_torch._decoder import Decoder, Row
from spangrad_torch._decoder_check import check_model
from spangrad_torch._key_values import KeyValueShape, RowSlots
from spangrad_torch._model import load_model
from spangrad_torch._stem_attention import StemView, merge, partial_attention
from spangrad_torch._stems import Stem, choose_stems


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int64)


def stem(tokens: IntArray) -> Stem:
    return Stem(tokens, torch.empty(0))


def chosen(sequences: list[IntArray], living: list[Stem], cost: int) -> list[list[int] | None]:
    stems = choose_stems(sequences, living, lambda i, length: stem(sequences[i][:length]), cost=cost)
    return [None if one is None else one.ids.tolist() for one in stems]


def test_attention_over_two_parts_by_hand() -> None:
    # Scores are 0 over the first part's two positions and log 2 over the second part's one: weights 1/4, 1/4 and 1/2.
    query = torch.tensor([[1.0]])
    one = partial_attention(query, torch.tensor([[0.0], [0.0]]), torch.tensor([[4.0], [8.0]]))
    other = partial_attention(query, torch.tensor([[math.log(2)]]), torch.tensor([[10.0]]))

    assert one[0].item() == pytest.approx(6)
    assert [part[1].item() for part in (one, other)] == pytest.approx([math.log(2), math.log(2)])
    assert merge(one, other).item() == pytest.approx(4 / 4 + 8 / 4 + 10 / 2)


def test_a_part_that_is_left_out_does_not_count() -> None:
    nothing = torch.tensor([[7.0]]), torch.tensor([[float("-inf")]])
    other = torch.tensor([[3.0]]), torch.tensor([[-50.0]])

    assert merge(nothing, other).item() == 3


@settings(deadline=None)
@given(
    stem_lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    of_rows=st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 6)), min_size=1, max_size=7),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    scaling=st.sampled_from([None, 0.3, 4.0]),
)
def test_attention_over_stems_is_attention_over_whole_rows(
    stem_lengths: list[int], of_rows: list[tuple[int, int]], kv_heads: int, groups: int, scaling: float | None
) -> None:
    layers, size = 2, 4
    generator = torch.Generator().manual_seed(len(of_rows))
    shape = KeyValueShape(2 * layers, kv_heads, size, torch.float32, torch.device("cpu"))
    stems = [
        Stem(np.arange(length), torch.randn(2 * layers, kv_heads, length, size, generator=generator))
        for length in stem_lengths
    ]
    rows: list[Stem | None] = [stems[0], *(stems[which % len(stems)] if which >= 0 else None for which, _ in of_rows)]
    positions = torch.tensor([2, *(position for _, position in of_rows)])
    length = int(positions.max()) + 1
    slots = RowSlots(shape)
    slots.reserve(len(rows), length, used=0)
    slots.data.normal_(generator=generator)
    view = StemView(slots, positions, length, rows)
    for layer in range(layers):
        query = torch.randn(len(rows), kv_heads * groups, 1, size, generator=generator)
        key, value = torch.randn(2, len(rows), kv_heads, 1, size, generator=generator)

        attended = view.attend(query, *view.update(key, value, layer), scaling)

        for i, (its_stem, position) in enumerate(zip(rows, positions.tolist(), strict=True)):
            parts = [] if its_stem is None else [its_stem.key_values[2 * layer : 2 * layer + 2]]
            parts += [slots.data[2 * layer : 2 * layer + 2, i, :, :position], torch.stack([key[i], value[i]])]
            keys, values = torch.cat(parts, dim=2).repeat_interleave(groups, dim=1)
            expected = functional.scaled_dot_product_attention(query[i], keys, values, scale=scaling)
            torch.testing.assert_close(attended[i, 0], expected[:, 0], rtol=1e-4, atol=1e-5)


def test_sequences_are_cut_where_it_saves_most() -> None:
    system = list(range(10))
    tasks = [[*system, *range(100 * task, 100 * task + 20)] for task in (1, 2)]
    sequences = [ids(*task, i) for i, task in enumerate(tasks * 3)]

    # Two stems of 30 save 2 x 2 x 30 positions for two costs, one of 10 saves 5 x 10 for one.
    assert chosen(sequences, [], cost=50) == [task for _ in range(3) for task in tasks]
    assert chosen([ids(*system, 100 + i) for i in range(4)], [], cost=29) == [system] * 4
    assert chosen([ids(*system, 100 + i) for i in range(4)], [], cost=30) == [None] * 4


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 6))
def test_no_choice_of_stems_saves_more(sequences: list[list[int]], cost: int) -> None:
    found = chosen([ids(*sequence) for sequence in sequences], [], cost)

    assert all(one is None or sequence[: len(one)] == one for sequence, one in zip(sequences, found, strict=True))
    in_order = sorted(zip(sequences, found, strict=True), key=lambda row: row[0])
    stems = [list(rows) for _, rows in itertools.groupby(in_order, key=lambda row: row[1])]
    saved = sum((len(rows) - 1) * len(rows[0][1]) - cost for rows in stems if rows[0][1] is not None)
    assert saved >= max(saving(parts, cost) for parts in partitions([sequence for sequence, _ in in_order]))


def partitions(sequences: list[list[int]]) -> Iterator[list[list[list[int]]]]:
    """All ways to cut a list."""
    for cuts in itertools.product([False, True], repeat=len(sequences) - 1):
        borders = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(sequences)]
        yield [sequences[a:b] for a, b in itertools.pairwise(borders)]


def saving(parts: list[list[list[int]]], cost: int) -> int:
    """What is saved when each part has a stem if that saves anything."""
    return sum(max(0, (len(part) - 1) * common(part) - cost) for part in parts)


def common(sequences: list[list[int]]) -> int:
    """How many tokens all of them begin with."""
    shortest = min(map(len, sequences))
    return next((n for n in range(shortest) if len({one[n] for one in sequences}) > 1), shortest)


def test_a_row_joins_the_longest_stem_there_is_unless_a_new_one_saves_more() -> None:
    short, long = stem(ids(1, 2)), stem(ids(1, 2, 3))
    late = ids(1, 2, 3, 4, 5, 6, 7, 8)

    assert chosen([late], [short, long], cost=1) == [[1, 2, 3]]
    assert chosen([late], [stem(ids(1, 9))], cost=1) == [None]
    assert chosen([late, late], [long], cost=1) == [late.tolist()] * 2  # 7 saved against 6
    assert chosen([late, late], [long], cost=2) == [[1, 2, 3]] * 2


def answers(decoder: Decoder, prompts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
    """Greedy answers and their log-probabilities. Rows come in two lots and end one after the other."""
    rows: list[tuple[Row, list[float]]] = []
    for i, prompt in enumerate(prompts):
        logprobs: list[float] = []
        params, most = SamplingParams(temperature=0), tokens + i % 5

        def take(token: object, logprobs: list[float] = logprobs, most: int = most) -> bool:
            logprobs.append(token.logprob)  # type: ignore[attr-defined]  # a DrawnToken
            return len(logprobs) < most

        rows.append((Row(list(prompt), params, torch.Generator(), 0, take), logprobs))
    half = len(rows) // 2
    decoder.add([row for row, _ in rows[:half]])
    decoder.step()
    decoder.add([row for row, _ in rows[half:]])
    while decoder.busy:
        decoder.step()
    return [(row.ids, logprobs) for row, logprobs in rows]


@pytest.mark.parametrize("cache_bytes", [0, 20_000, 1 << 20])
def test_answers_are_the_same_with_stems_and_without(tiny_model_folder: Path, cache_bytes: int) -> None:
    model = load_model(tiny_model_folder).model
    groups = [[3 + (7 * group + i) % 240 for i in range(37)] for group in range(3)]
    prompts = [[*group, *range(60, 60 + i % 3)] for i, group in enumerate(groups * 3)]

    found = []
    for cost in (None, 1):
        decoder = Decoder(model, max_rows=7, prefix_cache_bytes=cache_bytes, stem_cost=cost)
        first = answers(decoder, prompts, 9)
        found.append([*first, *answers(decoder, [[*row, 5, 6, 7] for row, _ in first], 4)])

    for (plain_ids, plain), (stem_ids, with_stems) in zip(*found, strict=True):
        assert stem_ids == plain_ids
        assert with_stems == pytest.approx(plain, abs=1e-5)


def test_rows_of_a_group_hold_their_prompt_once(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    decoder = Decoder(model, max_rows=8, prefix_cache_bytes=0)
    decoder.add(
        [Row([9] * 300, SamplingParams(), torch.Generator().manual_seed(i), 0, lambda _: True) for i in range(8)]
    )

    decoder.step()

    assert {row.stem_length for row in decoder._running} == {300}
    assert decoder._slots.data.shape[3] < 300

    decoder.forget()

    assert all(row.stem is None for row in decoder._waiting)


def test_a_model_whose_attention_is_not_told_of_stems_draws_without(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(tiny_model_folder).model
    assert check_model(model)
    forward = model.model.forward

    def deaf(**arguments: object) -> object:
        arguments.pop("attending", None)
        return forward(**arguments)

    monkeypatch.setattr(model.model, "forward", deaf)

    assert not check_model(model)
