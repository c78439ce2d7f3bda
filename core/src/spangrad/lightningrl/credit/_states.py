"""The states of the environment that calls were made in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from spangrad.transitions import IntArray, Transition, TransitionBatch


def state_of(transition: Transition) -> Hashable:
    """What the agent called the state; where it named none, the prompt: equal token ids are an equal state."""
    return transition.prompt_ids if transition.state is None else transition.state


def state_index(batch: TransitionBatch) -> IntArray:
    """(T,) the states numbered from 0; the same state of two tasks is two states."""
    return numbered((t.group_id, state_of(t)) for t in batch.transitions)


def numbered(keys: Iterable[Hashable]) -> IntArray:
    """Equal keys get equal numbers, from 0 in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
