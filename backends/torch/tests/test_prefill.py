"""The tree of what has to be computed, against the plain definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spangrad_torch._prefill import plan_prefill

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=6)


@given(SEQUENCES, st.data())
def test_each_prefix_is_one_node_that_sees_exactly_its_own_beginnings(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    cache: dict[tuple[int, ...], int] = {}
    cached = []
    for sequence in sequences:
        count = data.draw(st.integers(0, len(sequence) - 1))
        beginnings = [tuple(sequence[: n + 1]) for n in range(count)]
        cached.append(np.array([cache.setdefault(p, len(cache)) for p in beginnings], dtype=np.int64))

    plan = plan_prefill([np.array(s, dtype=np.int64) for s in sequences], cached)

    known, total = len(plan.cached), len(plan.cached) + len(plan.token_ids)
    prefix_of: dict[int, tuple[int, ...]] = {}
    for sequence, path in zip(sequences, plan.paths, strict=True):
        for depth, node in enumerate(path.tolist()):
            assert prefix_of.setdefault(node, tuple(sequence[: depth + 1])) == tuple(sequence[: depth + 1])
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    ends = {tuple(s) for s in sequences}
    assert sorted(prefix_of) == list(range(total))
    assert set(prefix_of.values()) == prefixes
    assert {prefix_of[n] for n in range(known)} == cache.keys() - ends
    assert [cache[prefix_of[n]] for n in range(known)] == plan.cached.tolist()
    assert [prefix_of[known + n][-1] for n in range(len(plan.token_ids))] == plan.token_ids.tolist()
    assert [len(prefix_of[known + n]) - 1 for n in range(len(plan.token_ids))] == plan.depths.tolist()
    assert [prefix_of[known + n] for n in plan.last.tolist()] == [tuple(s) for s in sequences]
    middle = data.draw(st.integers(0, len(plan.token_ids)))
    for start, stop in ((0, middle), (middle, len(plan.token_ids))):
        expected = [
            [prefix_of[known + n][: len(prefix_of[m])] == prefix_of[m] for m in range(known + stop)]
            for n in range(start, stop)
        ]
        assert plan.mask(start, stop).tolist() == expected
        if start < stop:
            runs = plan.runs(start, stop, groups=2)
            length = len(runs.keys) // len(runs.mask)
            for n, place in enumerate(runs.places.tolist(), start):
                assert runs.queries[place] == n - start
                row, query = divmod(place, len(runs.queries) // len(runs.mask))
                visible = runs.keys.view(-1, length)[row][runs.mask[row, 0, query]].tolist()
                assert [prefix_of[m] for m in visible] == [prefix_of[known + n][: d + 1] for d in range(len(visible))]
                assert len(visible) == len(prefix_of[known + n])
