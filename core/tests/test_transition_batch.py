"""The ragged batch of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spangrad.transitions import TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def test_indices_point_from_transitions_to_rollouts_to_groups(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("b", 1.0, [2, 3]), ("a", 0.5, [4]), ("b", 0.0, [1])], call_rewards={(1, 0): -2.0})
    assert len(batch) == 4
    assert batch.rollout_keys == (("rollout-0", 0), ("rollout-1", 0), ("rollout-2", 0))
    assert batch.rollout_index.tolist() == [0, 0, 1, 2]
    assert batch.group_keys == ("b", "a")
    assert batch.group_index.tolist() == [0, 1, 0]
    assert batch.rollout_rewards.tolist() == [1.0, 0.5, 0.0]
    assert batch.call_rewards.tolist() == [0.0, 0.0, -2.0, 0.0]
    assert batch.action_lengths.tolist() == [2, 3, 4, 1]


def test_attempts_of_one_rollout_are_rollouts_of_their_own(make_transition_batch: MakeBatch) -> None:
    (first,) = make_transition_batch([("a", 1.0, [2])]).transitions
    batch = TransitionBatch((first, replace(first, attempt=1, rollout_reward=0.0)))
    assert batch.rollout_keys == (("rollout-0", 0), ("rollout-0", 1))
    assert batch.rollout_rewards.tolist() == [1.0, 0.0]


def test_rows_of_a_rollout_need_not_be_neighbours(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 2]), ("b", 0.0, [3])])
    mixed = TransitionBatch(tuple(batch.transitions[i] for i in (0, 2, 1)))
    assert mixed.rollout_index.tolist() == [0, 1, 0]
    assert mixed.rollout_rewards.tolist() == [1.0, 0.0]


def test_a_selection_keeps_order_and_counts_only_what_is_left(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 2]), ("b", 0.0, [3]), ("b", 0.5, [4])])
    kept = batch.select([False, True, False, True])
    assert [t.call_id for t in kept.transitions] == ["call-0-1", "call-2-0"]
    assert kept.rollout_keys == (("rollout-0", 0), ("rollout-2", 0))
    assert kept.group_keys == ("a", "b")
    with pytest.raises(ValueError, match="shorter"):
        batch.select([True])


def test_an_empty_batch_has_empty_arrays() -> None:
    batch = TransitionBatch(())
    assert (len(batch), batch.rollout_keys, batch.group_keys) == (0, (), ())
    for array in (batch.rollout_index, batch.group_index, batch.rollout_rewards, batch.call_rewards):
        assert array.shape == (0,)
