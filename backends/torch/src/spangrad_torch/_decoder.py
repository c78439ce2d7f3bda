"""Continuous batching: rows join when there is room, leave when they end, and each step gives every row one more token.

A row is a sequence of ids and how to go on from it. Starting a row computes its ids in a prefill (shared with whatever starts
at the same time, and with the prefix cache) and draws its first token; so a row that has to start anew after the weights
have changed is simply started again with what it has by then. Not safe for threads: one thread at a time may use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel

from spangrad.backend import SamplingParams
from spangrad.transitions import IntArray
from spangrad_torch._attention import Attending, let_attend, takes_attending
from spangrad_torch._drawing import DrawnToken, draw
from spangrad_torch._key_values import BLOCK, DecodeView, KeyValueShape, PrefillView, PrefixCache, RowSlots
from spangrad_torch._linear import release_prepared
from spangrad_torch._prefill import PrefillPlan, plan_prefill
from spangrad_torch._stem_attention import StemView
from spangrad_torch._stems import COST, Stem, choose_stems
from spangrad_torch._tree_attention import heads_per_key

_CHUNK: Final = 512
"""Most tokens of one prefill pass: bounds the mask and the activations."""
_PACK: Final = 4096
"""Most prompt tokens started at a time, unless a single prompt is longer."""


@dataclass(eq=False)
class Row:
    """One answer being drawn."""

    ids: list[int]
    """Prompt and what has been drawn so far."""
    params: SamplingParams
    generator: torch.Generator
    """Its own, so that its numbers do not depend on what else is drawn."""
    top_logprobs: int
    take: Callable[[DrawnToken], bool]
    """Called with each drawn token, after it was added to `ids`; returns whether the answer goes on."""
    gone: bool = field(default=False)
    """Nobody wants the rest: the row leaves at the next step."""
    stem: Stem | None = field(default=None)
    """Has the keys and values of its beginning, while it runs; the rest lies in its slot."""

    @property
    def stem_length(self) -> int:
        """How many of its tokens are not in its slot."""
        return 0 if self.stem is None else len(self.stem.ids)


class Decoder:
    """The rows of one model.

    Args:
        model: in evaluation mode; its weights may change between steps if `forget` is called.
        max_rows: most rows at a time.
        prefix_cache_bytes: memory for keys and values of beginnings seen before.
        autocast: compute in this lower precision while the weights stay as they are.
        stem_cost: see `choose_stems`; None: no stems, and attention is the model's own. So it is on a GPU and in lower precision.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_rows: int,
        prefix_cache_bytes: int,
        autocast: torch.dtype | None = None,
        stem_cost: int | None = COST,
    ) -> None:
        self._model = model
        self._max_rows = max_rows
        self._autocast = autocast
        self._shape = KeyValueShape.of(model, autocast or model.dtype)
        if stem_cost is not None:
            let_attend(model)
        shares = takes_attending(model) and self._shape.dtype == torch.float32
        self._stem_cost = stem_cost if shares else None
        self._slots = RowSlots(self._shape)
        self._prefixes = PrefixCache(self._shape, prefix_cache_bytes)
        self._running: list[Row] = []
        """Row i has slot i; all but its last id have keys and values in its stem and there."""
        self._waiting: list[Row] = []
        # transformers 5.24 renamed the parameter; the old name is to go in 5.40.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.prefilled_tokens = 0
        """Prompt tokens computed so far; those read from the cache or shared are not in it."""

    @property
    def busy(self) -> bool:
        """Whether any row is running or waiting."""
        return bool(self._running or self._waiting)

    def add(self, rows: Sequence[Row]) -> None:
        """Queues rows; they start, in order, as there is room."""
        self._waiting.extend(rows)

    def forget(self) -> None:
        """Drops all keys and values, since the weights they came from are gone; running rows will start again."""
        self._prefixes.clear()
        for row in self._running:
            row.stem = None
        self._waiting[:0] = self._running
        self._running.clear()
        self._slots.release()
        release_prepared(self._model)

    def abandon(self) -> list[Row]:
        """Removes and returns all rows, running and waiting, and drops all keys and values."""
        self.forget()
        rows, self._waiting = self._waiting, []
        return rows

    @torch.no_grad()
    def step(self) -> None:
        """Starts waiting rows for which there is room, then draws one token for every running row."""
        self._waiting = [row for row in self._waiting if not row.gone]
        self._keep([not row.gone for row in self._running])
        if self._waiting and len(self._running) < self._max_rows:
            self._start(self._next_rows())
        if self._running:
            self._decode()

    def _next_rows(self) -> list[Row]:
        """Takes from the queue what starts now."""
        count, tokens = 0, 0
        for row in self._waiting[: self._max_rows - len(self._running)]:
            tokens += len(row.ids)
            if count and tokens > _PACK:
                break
            count += 1
        rows, self._waiting = self._waiting[:count], self._waiting[count:]
        return rows

    def _start(self, rows: Sequence[Row]) -> None:
        """Computes the rows' ids, draws their first tokens and lets them run."""
        # In front of the queue until they run: an error on the way must find them.
        self._waiting[:0] = rows
        sequences = [np.array(row.ids, dtype=np.int64) for row in rows]
        plan = plan_prefill(sequences, [self._prefixes.find(ids, len(ids) - 1) for ids in sequences])
        buffer, logits = self._prefill(plan)
        self._keep_prefixes(sequences, plan, buffer)
        stems = self._stems(sequences, plan, buffer)
        paths = [path[0 if stem is None else len(stem.ids) :] for path, stem in zip(plan.paths, stems, strict=True)]
        first, longest = len(self._running), max(map(len, paths))
        self._slots.reserve(first + len(rows), longest + 1, used=first)
        nodes = np.zeros((len(rows), longest), dtype=np.int64)
        for i, path in enumerate(paths):
            nodes[i, : len(path)] = path
        self._slots.data[:, first : first + len(rows), :, :longest] = buffer[:, :, self._tensor(nodes)].transpose(1, 2)
        for row, stem in zip(rows, stems, strict=True):
            row.stem = stem
        del self._waiting[: len(rows)]
        self._running.extend(rows)
        self._draw(logits, first)

    def _prefill(self, plan: PrefillPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes a plan's nodes.

        Returns:
            (2L, H, M, D) keys and values of all its nodes, and (S, V) logits after each sequence.
        """
        known, count = len(plan.cached), len(plan.token_ids)
        shape = self._shape
        buffer = torch.empty(
            (shape.planes, shape.heads, known + count, shape.head_size), dtype=shape.dtype, device=shape.device
        )
        buffer[:, :, :known] = self._prefixes.read(plan.cached)
        logits: torch.Tensor | None = None
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            here = np.flatnonzero((plan.last >= start) & (plan.last < stop))
            found = self._forward(
                plan.token_ids[None, start:stop],
                plan.depths[None, start:stop],
                PrefillView(buffer, known + start, known + stop),
                torch.from_numpy(plan.mask(start, stop))[None, None],
                self._tensor(plan.last[here] - start),
                **self._runs(plan, start, stop),
            )
            logits = found.new_empty((len(plan.last), found.shape[-1])) if logits is None else logits
            logits[self._tensor(here)] = found[0]
        self.prefilled_tokens += count
        if logits is None:
            raise AssertionError("every sequence has a last token to compute")
        return buffer, logits

    def _runs(self, plan: PrefillPlan, start: int, stop: int) -> dict[str, Attending]:
        """How a pass of the prefill attends, where that is faster than under its mask."""
        if self._stem_cost is None:
            return {}
        runs = plan.runs(start, stop, groups=heads_per_key(self._model))
        return {"attending": runs} if runs.pay(len(plan.cached) + stop) else {}

    def _keep_prefixes(self, sequences: Sequence[IntArray], plan: PrefillPlan, buffer: torch.Tensor) -> None:
        """Puts the whole blocks of prefilled sequences into the prefix cache."""
        for ids, path in zip(sequences, plan.paths, strict=True):
            known, places = self._prefixes.reserve(ids)
            if places:
                nodes = path[known : known + len(places) * BLOCK]
                self._prefixes.write(places, buffer[:, :, self._tensor(nodes)])

    def _stems(self, sequences: Sequence[IntArray], plan: PrefillPlan, buffer: torch.Tensor) -> list[Stem | None]:
        """The stems of rows that start; see `choose_stems`."""
        if self._stem_cost is None:
            return [None] * len(sequences)

        def make(i: int, length: int) -> Stem:
            return Stem(sequences[i][:length], buffer[:, :, self._tensor(plan.paths[i][:length])])

        living = list(dict.fromkeys(row.stem for row in self._running if row.stem is not None))
        return choose_stems(sequences, living, make, cost=self._stem_cost)

    def _decode(self) -> None:
        """One token more for every running row."""
        positions = np.array([len(row.ids) - 1 for row in self._running], dtype=np.int64)
        own = positions - np.array([row.stem_length for row in self._running], dtype=np.int64)
        length = int(own.max()) + 1
        self._slots.reserve(len(own), length, used=len(own))
        last = np.array([row.ids[-1] for row in self._running], dtype=np.int64)
        mask = torch.from_numpy(np.arange(length)[None, :] <= own[:, None])[:, None, None]
        stems = [row.stem for row in self._running]
        if any(stems):
            view = StemView(self._slots, self._tensor(own), length, stems)
            logits = self._forward(last[:, None], positions[:, None], view, mask, 1, attending=view)
        else:
            plain = DecodeView(self._slots, self._tensor(own), length)
            logits = self._forward(last[:, None], positions[:, None], plain, mask, 1)
        self._draw(logits[:, 0], 0)

    def _forward(
        self,
        ids: IntArray,
        positions: IntArray,
        view: Any,
        mask: torch.Tensor,
        keep: torch.Tensor | int,
        **attending: Attending,
    ) -> torch.Tensor:
        """(rows, kept, V) logits in fp32 of one pass; `keep` says at which places they are wanted."""
        device = self._shape.device
        # Without torch's own cache of cast weights: one made here, without gradients, must not reach a learner's forward pass.
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None, cache_enabled=False):
            output = self._model(
                input_ids=self._tensor(ids),
                position_ids=self._tensor(positions),
                attention_mask=mask.to(device),
                logits_to_keep=keep,
                use_cache=True,
                **{self._cache_name: view},
                **attending,
            )
        logits: torch.Tensor = output.logits
        return logits.float()

    def _draw(self, logits: torch.Tensor, first: int) -> None:
        """Draws a token for each running row from `first` on and removes the rows that end."""
        rows = self._running[first:]
        uniforms = [
            float(torch.rand((), generator=row.generator, dtype=torch.float64)) if row.params.temperature > 0 else 0.0
            for row in rows
        ]
        tokens = draw(logits, [row.params for row in rows], uniforms, [row.top_logprobs for row in rows])
        stays = [True] * first
        for row, token in zip(rows, tokens, strict=True):
            row.ids.append(token.token_id)
            stays.append(row.take(token))
        self._keep(stays)

    def _keep(self, stays: Sequence[bool]) -> None:
        """Removes running rows; the last ones move into the gaps. What a leaving row computed goes to the prefix cache."""
        for index in reversed([i for i, stay in enumerate(stays) if not stay]):
            row = self._running[index]
            self._keep_row_prefix(row, index)
            last = self._running.pop()
            if last is not row:
                self._slots.move(len(self._running), index, len(last.ids) - 1 - last.stem_length)
                self._running[index] = last

    def _keep_row_prefix(self, row: Row, index: int) -> None:
        """Puts a row's whole blocks into the prefix cache: the next call of its rollout is likely to begin with them."""
        ids = np.array(row.ids[:-1], dtype=np.int64)
        known, places = self._prefixes.reserve(ids)
        if places:
            stop = known + len(places) * BLOCK
            own = slice(max(known - row.stem_length, 0), max(stop - row.stem_length, 0))
            values = self._slots.data[:, index, :, own]
            if row.stem is not None:
                values = torch.cat([row.stem.key_values[:, :, known:stop], values], dim=2)
            self._prefixes.write(places, values)

    def _tensor(self, array: IntArray) -> torch.Tensor:
        """An array as a tensor where the model is."""
        return torch.from_numpy(array).to(self._shape.device)
