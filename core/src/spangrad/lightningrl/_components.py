"""A batch taken apart into one for each reward by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spangrad.transitions import RewardWeights, TransitionBatch


def component_names(batch: TransitionBatch) -> tuple[str, ...]:
    """The names of all rewards in the batch, of rollouts and of calls, sorted."""
    return tuple(sorted({name for t in batch.transitions for name in (*t.components, *t.rollout_components)}))


def component_batches(batch: TransitionBatch, weights: RewardWeights) -> Iterator[tuple[float, TransitionBatch]]:
    """The weight of each reward by name, and the batch as if it were the only one; the batch itself where nothing has a name.

    A rollout or call without the reward has none, which counts 0 in sums, as it does in the weighted sum of all rewards.
    """
    names = component_names(batch)
    if not names:
        yield 1.0, batch
    for name in names:
        yield weights.of(name), _only(batch, name)


def _only(batch: TransitionBatch, name: str) -> TransitionBatch:
    return TransitionBatch(
        tuple(
            replace(t, reward=t.components.get(name), rollout_reward=t.rollout_components.get(name, 0.0))
            for t in batch.transitions
        )
    )


def component_warnings(batch: TransitionBatch) -> tuple[str, ...]:
    """What the user should know where rewards are compared one by one."""
    names = component_names(batch)
    if not names[1:]:
        only = (
            "The estimator compares each reward by itself, but there is only one: give several by name "
            "(return a mapping, or r.reward(value, name=...))"
        )
        return (only,)
    given = {key: set[str]() for key in batch.rollout_keys}
    for t in batch.transitions:
        given[t.rollout_id, t.attempt] |= {*t.components, *t.rollout_components}
    missing = {
        name: sum(name not in found for found in given.values())
        for name in sorted({name for t in batch.transitions for name in t.rollout_components})
    }
    return tuple(
        f"{count} of {len(given)} rollouts have no reward {name!r}; it counts as 0 there"
        for name, count in missing.items()
        if count
    )
