"""The steps of a rollout, and the rewards still to come at each.

A step is a depth (`Transition.depth`): calls made side by side share one, so nothing here depends on the order in which parallel
calls happened to be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spangrad.transitions import FloatArray, IntArray, TransitionBatch


def call_depths(batch: TransitionBatch) -> IntArray:
    """(T,) the step of its rollout each transition was made in; in order of `index` where nothing more is known."""
    first: dict[tuple[str, int, str], int] = {}
    for t in sorted(batch.transitions, key=lambda t: t.index):
        first.setdefault((t.rollout_id, t.attempt, t.call_id), t.index)
    depths = [first[t.rollout_id, t.attempt, t.call_id] if t.depth is None else t.depth for t in batch.transitions]
    return np.array(depths, dtype=np.int64)


def rollout_steps(batch: TransitionBatch) -> Iterator[list[tuple[int, IntArray]]]:
    """For each rollout, in the batch's order, its steps from the first to the last: (depth, positions in the batch)."""
    depths = call_depths(batch)
    order = np.lexsort((depths, batch.rollout_index))
    ends = np.cumsum(np.bincount(batch.rollout_index, minlength=len(batch.rollout_keys)))
    for members in np.split(order, ends[:-1]) if len(ends) else ():
        starts = np.flatnonzero(np.diff(depths[members])) + 1
        yield [(int(depths[step[0]]), step) for step in np.split(members, starts)]


def last_steps(batch: TransitionBatch) -> IntArray:
    """Positions of the transitions of each rollout's deepest step."""
    deepest = [steps[-1][1] for steps in rollout_steps(batch)]
    return np.concatenate(deepest) if deepest else np.zeros(0, dtype=np.int64)


def rewards_to_come(
    batch: TransitionBatch, rewards: FloatArray, final: FloatArray, gamma: float
) -> tuple[FloatArray, FloatArray]:
    """Discounted rewards from each step on: G_d = r_d + gamma * G_(d+1).

    A call never gets the reward of one beside it, and a step whose calls are not in the batch still counts as a step.

    Args:
        batch: the transitions.
        rewards: (T,) of each transition.
        final: (R,) what each rollout's deepest step gets besides.
        gamma: discount per step.

    Returns:
        (T,) from each transition's step on, and (R,) of the whole rollout, seen from its first step.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    whole = np.zeros(len(final), dtype=np.float64)
    for rollout, steps in enumerate(rollout_steps(batch)):
        to_come = float(final[rollout])
        below = steps[-1][0]
        for depth, members in reversed(steps):
            to_come *= gamma ** (below - depth)
            result[members] = rewards[members] + to_come
            to_come += float(rewards[members].sum())
            below = depth
        whole[rollout] = to_come
    return result, whole
