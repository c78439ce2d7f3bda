"""What must hold for advantages of any batch, and which estimators are exempt from it, and why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.lightningrl import (
    GAE,
    GDPO,
    GRPO,
    RAE,
    RLOO,
    AdvantageEstimator,
    DrGRPO,
    Grouping,
    Identical,
    MaxRL,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    builtin_estimators,
)
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
Shape = tuple[str, float, list[int]]

ALL: list[AdvantageEstimator] = [
    DrGRPO(),
    GDPO(),
    GRPO(),
    MaxRL(),
    RAE(),
    ReinforcePlusPlus(),
    ReinforcePlusPlusBaseline(),
    RLOO(),
]
WITHIN_TASKS = [e for e in ALL if not isinstance(e, ReinforcePlusPlus | RAE)]
"""Those that compare the rollouts of a task; reinforce_pp compares the whole batch, rae an agent's past."""
SHIFTABLE = [e for e in ALL if not isinstance(e, MaxRL | RAE)]
"""A constant added to all rewards cancels out; maxrl divides by the mean, which it changes, and rae's baseline is older."""
LINEAR = [DrGRPO(), RLOO(), RAE()]
"""Advantages in the unit of the rewards; all the others divide by a deviation or a mean."""


def rollouts_of_tasks(lowest: int) -> st.SearchStrategy[list[Shape]]:
    """Rollouts of up to three tasks, with rewards in quarters from `lowest` quarters."""
    rewards = st.integers(lowest, 40).map(lambda n: n / 4)
    calls = st.lists(st.integers(1, 4), min_size=1, max_size=4)
    return st.lists(st.tuples(st.sampled_from("abc"), rewards, calls), min_size=1, max_size=9)


def shapes_for(estimator: AdvantageEstimator) -> st.SearchStrategy[list[Shape]]:
    """Of any sign, but for maxrl, which refuses returns below 0."""
    return rollouts_of_tasks(0 if isinstance(estimator, MaxRL) else -40)


def each(estimators: list[AdvantageEstimator]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("estimator", estimators, ids=lambda e: type(e).__name__)


def advantages(estimator: AdvantageEstimator, batch: TransitionBatch) -> FloatArray:
    compared = Identical().comparisons(batch)
    return estimator.advantages(Grouping().applied(compared, batch, among=estimator.requirements.among))


def per_rollout(estimator: AdvantageEstimator, batch: TransitionBatch) -> dict[str, float]:
    """The advantage of each rollout, which all its calls must share."""
    found: dict[str, float] = {}
    for transition, advantage in zip(batch.transitions, advantages(estimator, batch), strict=True):
        assert found.setdefault(transition.rollout_id, advantage) == advantage
    return found


def test_every_estimator_is_in_the_list() -> None:
    assert {type(estimator) for estimator in ALL} == set(builtin_estimators().values()) - {GAE}  # compares none


@each(WITHIN_TASKS)
def test_a_rollout_without_others_of_its_task_gets_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator
) -> None:
    assert advantages(estimator, make_transition_batch([("a", 7, [1, 1])])).tolist() == [0, 0]
    beside = make_transition_batch([("a", 7, [1, 1]), ("b", 1, [1]), ("b", 0, [1])])
    alone = make_transition_batch([("b", 1, [1]), ("b", 0, [1])])
    assert advantages(estimator, beside)[:2].tolist() == [0, 0]
    assert advantages(estimator, beside)[2:].tolist() == advantages(estimator, alone).tolist()


@each([e for e in ALL if not isinstance(e, RAE)])
def test_equal_rewards_give_no_advantage(make_transition_batch: MakeBatch, estimator: AdvantageEstimator) -> None:
    # rae has an older baseline: that all did well is news to it
    batch = make_transition_batch([("a", 0.5, [1, 1]), ("a", 0.5, [1]), ("a", 0.5, [1])])
    assert advantages(estimator, batch).tolist() == [0, 0, 0, 0]


@each(ALL)
def test_an_empty_batch_has_no_advantages(estimator: AdvantageEstimator) -> None:
    assert advantages(estimator, TransitionBatch(())).shape == (0,)


@each(ALL)
@given(data=st.data())
def test_the_order_of_rollouts_and_rows_does_not_matter(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, data: st.DataObject
) -> None:
    batch = make_transition_batch(data.draw(shapes_for(estimator)))
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = TransitionBatch(tuple(batch.transitions[i] for i in order))
    assert advantages(estimator, shuffled) == pytest.approx(advantages(estimator, batch)[order], abs=1e-9)


@each(ALL)
@given(data=st.data())
def test_splitting_a_rollout_into_more_calls_or_merging_them_changes_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, data: st.DataObject
) -> None:
    rollouts = data.draw(shapes_for(estimator))
    chosen = data.draw(st.integers(0, len(rollouts) - 1))
    group, reward, calls = rollouts[chosen]
    for other in ([*calls, 1, 1, 1], [sum(calls)]):
        changed = [*rollouts[:chosen], (group, reward, other), *rollouts[chosen + 1 :]]
        before = per_rollout(estimator, make_transition_batch(rollouts))
        after = per_rollout(estimator, make_transition_batch(changed))
        assert after == pytest.approx(before, abs=1e-9)


@each(SHIFTABLE)
@given(rollouts=rollouts_of_tasks(-40), constant=st.integers(-8, 8))
def test_a_constant_added_to_all_rewards_changes_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape], constant: int
) -> None:
    shifted = [(group, reward + constant, calls) for group, reward, calls in rollouts]
    before = advantages(estimator, make_transition_batch(rollouts))
    assert advantages(estimator, make_transition_batch(shifted)) == pytest.approx(before, abs=1e-9)


@each(ALL)
@given(data=st.data(), factor=st.sampled_from([0.5, 2.0, 16.0]))
def test_scaled_rewards_scale_the_advantages_only_where_nothing_divides_them(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, data: st.DataObject, factor: float
) -> None:
    rollouts = data.draw(shapes_for(estimator))
    scaled = [(group, reward * factor, calls) for group, reward, calls in rollouts]
    before = advantages(estimator, make_transition_batch(rollouts))
    after = advantages(estimator, make_transition_batch(scaled))
    expected = before * factor if estimator in LINEAR else before
    # eps next to a deviation of at least 0.1 is worth 1e-5
    assert after == pytest.approx(expected, rel=1e-4, abs=1e-9)


@each(WITHIN_TASKS)
@given(data=st.data())
def test_the_advantages_of_a_tasks_rollouts_sum_to_zero(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, data: st.DataObject
) -> None:
    rollouts = data.draw(shapes_for(estimator))
    sums = {group: 0.0 for group, _, _ in rollouts}
    for (group, _, _), advantage in zip(
        rollouts, per_rollout(estimator, make_transition_batch(rollouts)).values(), strict=True
    ):
        sums[group] += advantage
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-9)


@given(rollouts=rollouts_of_tasks(-40))
def test_reinforce_pps_advantages_sum_to_zero_over_the_batch(
    make_transition_batch: MakeBatch, rollouts: list[Shape]
) -> None:
    found = per_rollout(ReinforcePlusPlus(), make_transition_batch(rollouts))
    assert sum(found.values()) == pytest.approx(0.0, abs=1e-9)


@each(ALL)
@given(data=st.data())
def test_of_two_rollouts_of_a_task_the_better_one_never_has_the_smaller_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, data: st.DataObject
) -> None:
    rollouts = data.draw(shapes_for(estimator))
    found = list(per_rollout(estimator, make_transition_batch(rollouts)).values())
    for group in {group for group, _, _ in rollouts}:
        ranked = sorted((reward, number) for number, (task, reward, _) in enumerate(rollouts) if task == group)
        assert (np.diff([found[number] for _, number in ranked]) >= -1e-12).all()
