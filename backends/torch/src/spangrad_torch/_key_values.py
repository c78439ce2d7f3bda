"""Where keys and values lie: one slot per running row, a cache of prompt blocks, and the views transformers writes through.

Letters: L layers, H key-value heads, D head size; a layer's keys are plane 2l and its values plane 2l + 1 of the first axis.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from spangrad.transitions import IntArray

BLOCK: Final = 4
"""Tokens of a cached block; a beginning is known up to its last whole block, so the rest, half a block on average, is computed again."""
_GROWTH: Final = 64
"""Slots grow by multiples of this many positions."""


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """Sizes and type of a model's keys and values."""

    planes: int
    """2 L."""
    heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: PreTrainedModel, dtype: torch.dtype) -> KeyValueShape:
        """Reads the sizes from the model's configuration."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        key_value_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(2 * config.num_hidden_layers, key_value_heads, head_size, dtype, model.device)

    @property
    def token_bytes(self) -> int:
        """Memory of one token's keys and values."""
        return self.planes * self.heads * self.head_size * self.dtype.itemsize

    def empty(self, *lead: int) -> torch.Tensor:
        """Uninitialised memory of shape (*lead, planes, H, D)."""
        return torch.empty((*lead, self.planes, self.heads, self.head_size), dtype=self.dtype, device=self.device)


class RowSlots:
    """Keys and values of the running rows, (2L, rows, H, positions, D), grown as needed."""

    def __init__(self, shape: KeyValueShape) -> None:
        self._shape = shape
        self.data = torch.empty((shape.planes, 0, shape.heads, 0, shape.head_size), dtype=shape.dtype)

    def reserve(self, rows: int, positions: int, *, used: int) -> None:
        """Makes room for so many rows and positions, keeping the first `used` rows."""
        planes, have_rows, heads, have_positions, size = self.data.shape
        if rows <= have_rows and positions <= have_positions:
            return
        rows = max(rows, have_rows)
        positions = max(-(-positions // _GROWTH) * _GROWTH, have_positions)
        # Zeroed: positions not yet written are masked, but a masked NaN would still spoil the weighted sum.
        grown = torch.zeros((planes, rows, heads, positions, size), dtype=self._shape.dtype, device=self._shape.device)
        if used:
            grown[:, :used, :, :have_positions] = self.data[:, :used]
        self.data = grown

    def move(self, source: int, target: int, positions: int) -> None:
        """Copies the first positions of one row over another."""
        self.data[:, target, :, :positions] = self.data[:, source, :, :positions]

    def release(self) -> None:
        """Gives the memory back."""
        self.data = self.data[:, :0, :, :0].clone()


class PrefixCache:
    """Keys and values of token blocks seen before, least recently used first to go.

    A block is known by its tokens and by the block before it, so equal tokens after different beginnings stay apart.

    Args:
        shape: of the model's keys and values.
        budget: bytes; less than one block's turns the cache off.
    """

    def __init__(self, shape: KeyValueShape, budget: int) -> None:
        self._capacity = budget // (shape.token_bytes * BLOCK)
        # Untouched memory costs nothing: the system backs it with pages when blocks are written.
        self._pool = shape.empty(self._capacity * BLOCK)
        self._blocks: OrderedDict[tuple[int, bytes], tuple[int, int]] = OrderedDict()
        """(id of the block before, tokens) -> (id, place in the pool); oldest first."""
        self._free = list(range(self._capacity))
        self._next_id = 1

    def clear(self) -> None:
        """Forgets everything."""
        self._blocks.clear()
        self._free = list(range(self._capacity))

    def find(self, ids: IntArray, limit: int) -> IntArray:
        """Where the longest known beginning of `ids`, of at most `limit` tokens, lies in the pool: one index a token."""
        keys, places = self._walk(ids[:limit])
        for key in reversed(keys):  # a beginning must outlive what follows it
            self._blocks.move_to_end(key)
        starts = np.array(places, dtype=np.int64)[:, None] * BLOCK
        return (starts + np.arange(BLOCK)).reshape(-1)

    def read(self, places: IntArray) -> torch.Tensor:
        """(2L, H, n, D) keys and values at the places `find` gave."""
        return self._pool[torch.from_numpy(places).to(self._pool.device)].permute(1, 2, 0, 3)

    def reserve(self, ids: IntArray) -> tuple[int, list[int]]:
        """Makes entries for the blocks of `ids` that are not known yet.

        Returns:
            How many leading tokens were known, and the places of the new blocks that follow; `write` must fill them.
        """
        keys, _ = self._walk(ids)
        known = len(keys)
        chain = set(keys)
        parent = self._blocks[keys[-1]][0] if keys else 0
        places: list[int] = []
        for start in range(known * BLOCK, len(ids) - BLOCK + 1, BLOCK):
            place = self._take(chain)
            if place is None:
                break
            key = (parent, ids[start : start + BLOCK].tobytes())
            parent, self._next_id = self._next_id, self._next_id + 1
            self._blocks[key] = (parent, place)
            chain.add(key)
            keys.append(key)
            places.append(place)
        for key in reversed(keys):
            self._blocks.move_to_end(key)
        return known * BLOCK, places

    def write(self, places: Sequence[int], values: torch.Tensor) -> None:
        """Fills reserved blocks.

        Args:
            places: (n) as `reserve` gave them.
            values: (2L, H, n x BLOCK, D).
        """
        blocks = values.permute(2, 0, 1, 3).reshape(len(places), BLOCK, *self._pool.shape[1:])
        self._pool.view(self._capacity, BLOCK, *self._pool.shape[1:])[
            torch.tensor(places, device=self._pool.device)
        ] = blocks

    def _walk(self, ids: IntArray) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Keys and places of the known blocks `ids` begins with."""
        keys: list[tuple[int, bytes]] = []
        places: list[int] = []
        parent = 0
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = (parent, ids[start : start + BLOCK].tobytes())
            if (entry := self._blocks.get(key)) is None:
                break
            parent = entry[0]
            keys.append(key)
            places.append(entry[1])
        return keys, places

    def _take(self, chain: set[tuple[int, bytes]]) -> int | None:
        """A free place, evicting the oldest block unless that is one of `chain`."""
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._blocks), None)
        if oldest is None or oldest in chain:
            return None
        return self._blocks.pop(oldest)[1]


class _View(Cache):
    """What a model's attention layers write their new keys and values to, and read all of them from."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused: positions and mask are always given."""
        del layer_idx
        return 0


class DecodeView(_View):
    """One new token for each of the first rows, each at its own position.

    Args:
        slots: where the rows' keys and values lie.
        positions: (B,) where each row's new token goes.
        length: positions to attend over, at most; the mask hides what a row has not reached.
    """

    def __init__(self, slots: RowSlots, positions: torch.Tensor, length: int) -> None:
        super().__init__()
        self._data = slots.data[:, : len(positions), :, :length]
        self._rows = torch.arange(len(positions), device=positions.device)
        self._positions = positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes (B, H, 1, D) keys and values, gives (B, H, length, D) of each."""
        keys, values = self._data[2 * layer_idx], self._data[2 * layer_idx + 1]
        # Under autocast rotated keys come in fp32; attention would cast them just so.
        keys[self._rows, :, self._positions] = key_states[:, :, 0].to(keys.dtype)
        values[self._rows, :, self._positions] = value_states[:, :, 0].to(values.dtype)
        return keys, values


class PrefillView(_View):
    """The nodes of a tree, computed in order.

    Args:
        buffer: (2L, H, M, D) keys and values of the nodes.
        start: first node computed now.
        stop: node after the last one computed now.
    """

    def __init__(self, buffer: torch.Tensor, start: int, stop: int) -> None:
        super().__init__()
        self._buffer, self._start, self._stop = buffer, start, stop

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes (1, H, stop - start, D) keys and values, gives (1, H, stop, D) of each."""
        keys, values = self._buffer[2 * layer_idx], self._buffer[2 * layer_idx + 1]
        keys[:, self._start : self._stop] = key_states[0]
        values[:, self._start : self._stop] = value_states[0]
        return keys[None, :, : self._stop], values[None, :, : self._stop]
