"""Advantage estimators, against numbers worked out by hand and what must hold for any batch."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import ConfigError
from spangrad.lightningrl import (
    GRPO,
    RLOO,
    AdvantageEstimator,
    Discounted,
    DrGRPO,
    Identical,
    ReinforcePlusPlusBaseline,
)
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
Shape = tuple[str, float, list[int]]

ESTIMATORS: list[AdvantageEstimator] = [GRPO(), DrGRPO(), RLOO(), ReinforcePlusPlusBaseline()]
rollouts_of_tasks = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(-40, 40).map(lambda n: n / 4),
        st.lists(st.integers(1, 4), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=9,
)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def advantages(estimator: AdvantageEstimator, batch: TransitionBatch) -> FloatArray:
    return estimator.advantages(Identical().comparisons(batch))


def per_rollout(estimator: AdvantageEstimator, batch: TransitionBatch) -> dict[str, float]:
    """The advantage of each rollout, which all its calls must share."""
    found: dict[str, float] = {}
    for transition, advantage in zip(batch.transitions, advantages(estimator, batch), strict=True):
        assert found.setdefault(transition.rollout_id, advantage) == advantage
    return found


def test_grpo_centres_on_the_mean_of_rollouts_not_of_rows(make_transition_batch: MakeBatch) -> None:
    # Rewards 1, 0, 1, 0 with 2, 1, 2, 1 calls: over rollouts the mean is 0.5, over rows it would be 2/3.
    batch = make_transition_batch([("a", 1, [3, 3]), ("a", 0, [3]), ("a", 1, [3, 3]), ("a", 0, [3])])
    one = 0.5 / (sqrt(4 * 0.25 / 3) + 1e-6)
    assert advantages(GRPO(), batch) == pytest.approx([one, one, -one, one, one, -one], rel=1e-12)


def test_grpo_divides_by_the_unbiased_standard_deviation_plus_eps(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1]), ("a", 1, [1]), ("b", 5, [1]), ("b", 5.5, [1]), ("b", 6, [1])])
    # a: mean 2, std sqrt(2); b: mean 5.5, std 0.5
    expected = [1 / (sqrt(2) + 0.1), -1 / (sqrt(2) + 0.1), -0.5 / 0.6, 0, 0.5 / 0.6]
    assert advantages(GRPO(eps=0.1), batch) == pytest.approx(expected)


def test_dr_grpo_only_subtracts_the_mean(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1, 1]), ("a", 1, [1]), ("b", 6, [1]), ("b", 5, [1]), ("b", 4, [1])])
    assert advantages(DrGRPO(), batch).tolist() == [1, 1, -1, 1, 0, -1]


def test_rloo_leaves_out_the_rollout_not_the_row(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1, 1]), ("a", 0, [1]), ("a", 1, [1, 1, 1])])
    # the others of the first are 0 and 1, of the second 3 and 1, of the third 3 and 0
    assert advantages(RLOO(), batch) == pytest.approx([2.5, 2.5, -2, -0.5, -0.5, -0.5])


def test_reinforce_pp_baseline_normalises_over_the_rollouts_of_the_batch(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1, 1]), ("a", 1, [1]), ("b", 6, [1]), ("b", 6, [1])])
    # centred per task: 1, -1, 0, 0; over the four rollouts: mean 0, std sqrt(2 / 3)
    one = 1 / (sqrt(2 / 3) + 1e-6)
    assert advantages(ReinforcePlusPlusBaseline(), batch) == pytest.approx([one, one, -one, 0, 0], abs=1e-15)


def test_a_baseline_of_discounted_returns_weighs_each_rollout_once(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 0, [1])])
    compared = Discounted(gamma=0.5).comparisons(batch)
    assert compared[0].returns.tolist() == [0.5, 1, 0]
    # rollout values 0.75 and 0, so the baseline is 0.375; the rows' mean would be 0.5
    assert DrGRPO().advantages(compared) == pytest.approx([0.125, 0.625, -0.375])
    assert RLOO().advantages(compared) == pytest.approx([0.5, 1.0, -0.75])
    # the mean square within the first rollout, and the square of the second
    std = sqrt((0.015625 + 0.390625) / 2 + 0.140625)
    assert GRPO(eps=1e-12).advantages(compared) == pytest.approx(np.array([0.125, 0.625, -0.375]) / std)


def test_returns_that_differ_only_within_rollouts_never_blow_grpo_up(make_transition_batch: MakeBatch) -> None:
    # Rollout values 0.75 and 0.75 + 5e-10: their own spread is nothing, but the returns' is not.
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 1 + 1e-9, [1, 1])])
    values = GRPO().advantages(Discounted(gamma=0.5).comparisons(batch))
    assert np.abs(values).max() < 1.0


@every_estimator
def test_a_rollout_without_others_of_its_task_gets_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator
) -> None:
    assert advantages(estimator, make_transition_batch([("a", 7, [1, 1])])).tolist() == [0, 0]
    beside = make_transition_batch([("a", 7, [1, 1]), ("b", 1, [1]), ("b", 0, [1])])
    alone = make_transition_batch([("b", 1, [1]), ("b", 0, [1])])
    assert advantages(estimator, beside)[:2].tolist() == [0, 0]
    assert advantages(estimator, beside)[2:].tolist() == advantages(estimator, alone).tolist()


@every_estimator
def test_equal_rewards_give_no_advantage(make_transition_batch: MakeBatch, estimator: AdvantageEstimator) -> None:
    batch = make_transition_batch([("a", 0.5, [1, 1]), ("a", 0.5, [1]), ("a", 0.5, [1])])
    assert advantages(estimator, batch).tolist() == [0, 0, 0, 0]


@every_estimator
def test_an_empty_batch_has_no_advantages(estimator: AdvantageEstimator) -> None:
    assert advantages(estimator, TransitionBatch(())).shape == (0,)


@every_estimator
@given(rollouts=rollouts_of_tasks, data=st.data())
def test_the_order_of_rollouts_and_rows_does_not_matter(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape], data: st.DataObject
) -> None:
    batch = make_transition_batch(rollouts)
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = TransitionBatch(tuple(batch.transitions[i] for i in order))
    assert advantages(estimator, shuffled) == pytest.approx(advantages(estimator, batch)[order], abs=1e-9)


@every_estimator
@given(rollouts=rollouts_of_tasks, data=st.data())
def test_splitting_a_rollout_into_more_calls_changes_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape], data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(rollouts) - 1))
    group, reward, calls = rollouts[chosen]
    split = [*rollouts[:chosen], (group, reward, [*calls, 1, 1, 1]), *rollouts[chosen + 1 :]]
    before = per_rollout(estimator, make_transition_batch(rollouts))
    after = per_rollout(estimator, make_transition_batch(split))
    assert after == pytest.approx(before, abs=1e-9)


@every_estimator
@given(rollouts=rollouts_of_tasks, constant=st.integers(-8, 8))
def test_a_constant_added_to_all_rewards_changes_no_advantage(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape], constant: int
) -> None:
    shifted = [(group, reward + constant, calls) for group, reward, calls in rollouts]
    before = advantages(estimator, make_transition_batch(rollouts))
    assert advantages(estimator, make_transition_batch(shifted)) == pytest.approx(before, abs=1e-9)


@every_estimator
@given(rollouts=rollouts_of_tasks, factor=st.sampled_from([0.5, 2.0, 16.0]))
def test_scaled_rewards_scale_the_advantages_only_where_no_deviation_divides_them(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape], factor: float
) -> None:
    scaled = [(group, reward * factor, calls) for group, reward, calls in rollouts]
    before = advantages(estimator, make_transition_batch(rollouts))
    after = advantages(estimator, make_transition_batch(scaled))
    expected = before if isinstance(estimator, GRPO | ReinforcePlusPlusBaseline) else before * factor
    # eps next to a deviation of at least 0.1 is worth 1e-5
    assert after == pytest.approx(expected, rel=1e-4, abs=1e-9)


@every_estimator
@given(rollouts=rollouts_of_tasks)
def test_the_advantages_of_a_tasks_rollouts_sum_to_zero(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, rollouts: list[Shape]
) -> None:
    groups = {f"rollout-{i}": group for i, (group, _, _) in enumerate(rollouts)}
    sums = dict.fromkeys(groups.values(), 0.0)
    for rollout_id, advantage in per_rollout(estimator, make_transition_batch(rollouts)).items():
        sums[groups[rollout_id]] += advantage
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-9)


@pytest.mark.parametrize("make", [GRPO, ReinforcePlusPlusBaseline])
@pytest.mark.parametrize("eps", [0, -1e-6, float("nan"), float("inf"), "1e-6", True])
def test_an_eps_that_is_no_positive_number_is_refused(make: Callable[..., AdvantageEstimator], eps: object) -> None:
    with pytest.raises(ConfigError, match="eps is"):
        make(eps=eps)
