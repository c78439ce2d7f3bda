"""Small prefix trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from spangrad.transitions import PrefixTreePack, pack_sequences


@dataclass(frozen=True)
class Tokens:
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]


few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
batches = st.lists(st.builds(Tokens, few_tokens, few_tokens), min_size=1, max_size=8)


def one_pack(batch: list[Tokens]) -> PrefixTreePack:
    (pack,) = pack_sequences(batch, budget=10_000).packs
    return pack


def wide_tree() -> PrefixTreePack:
    """A short shared prompt with many long answers, for which runs pay."""
    rng = np.random.default_rng(0)
    prompt = tuple(rng.integers(3, 200, 20).tolist())
    return one_pack([Tokens(prompt, tuple(rng.integers(3, 200, 30).tolist())) for _ in range(8)])
