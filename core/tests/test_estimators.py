"""Advantage estimators, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from spangrad.errors import ConfigError, RewardError
from spangrad.lightningrl import (
    GDPO,
    GRPO,
    RLOO,
    AdvantageEstimator,
    Discounted,
    DrGRPO,
    Grouping,
    Identical,
    MaxRL,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
)
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def advantages(estimator: AdvantageEstimator, batch: TransitionBatch) -> FloatArray:
    compared = Identical().comparisons(batch)
    return estimator.advantages(Grouping().applied(compared, batch, among=estimator.requirements.among))


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


def test_reinforce_pp_normalises_over_all_rollouts_of_the_batch_whatever_their_task(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 4, [1, 1, 1]), ("b", 1, [1]), ("c", 1, [1])])
    # over the three rollouts, not the five rows: mean 2, std sqrt((4 + 1 + 1) / 2) = sqrt(3)
    scale = sqrt(3) + 0.1
    expected = [2 / scale] * 3 + [-1 / scale] * 2
    assert advantages(ReinforcePlusPlus(eps=0.1), batch) == pytest.approx(expected, rel=1e-12)


def test_reinforce_pp_learns_from_a_task_of_one_rollout_unless_it_is_the_only_one(
    make_transition_batch: MakeBatch,
) -> None:
    # mean 1, std sqrt(2)
    pair = make_transition_batch([("a", 2, [1]), ("b", 0, [1])])
    assert advantages(ReinforcePlusPlus(eps=1e-12), pair) == pytest.approx([1 / sqrt(2), -1 / sqrt(2)])
    assert advantages(ReinforcePlusPlus(), make_transition_batch([("a", 2, [1, 1])])).tolist() == [0, 0]


def test_maxrl_divides_by_the_share_of_successes(make_transition_batch: MakeBatch) -> None:
    # one of four succeeds: mean 1/4, so (1 - 1/4) / (1/4) = 3 and -1; three of four: mean 3/4, so 1/3 and -1
    hard = [("hard", 1, [1, 1]), ("hard", 0, [1]), ("hard", 0, [1, 1]), ("hard", 0, [1])]
    easy = [("easy", 1, [1]), ("easy", 1, [1]), ("easy", 0, [1]), ("easy", 1, [1])]
    expected = [3, 3, -1, -1, -1, -1, 1 / 3, 1 / 3, -1, 1 / 3]
    assert advantages(MaxRL(), make_transition_batch([*hard, *easy])) == pytest.approx(expected, rel=1e-12)


def test_maxrl_weighs_graded_rewards_by_their_mean(make_transition_batch: MakeBatch) -> None:
    # mean 2: (5 - 2) / 2, (1 - 2) / 2, (0 - 2) / 2
    batch = make_transition_batch([("a", 5, [1]), ("a", 1, [1]), ("a", 0, [1])])
    assert advantages(MaxRL(), batch).tolist() == [1.5, -0.5, -1.0]


def test_maxrl_has_nothing_to_learn_where_nothing_succeeded(make_transition_batch: MakeBatch) -> None:
    assert advantages(MaxRL(), make_transition_batch([("a", 0, [1, 1]), ("a", 0, [1])])).tolist() == [0, 0, 0]


def test_maxrl_stays_finite_however_small_the_rewards_are(make_transition_batch: MakeBatch) -> None:
    # mean 5e-301: (1e-300 - 5e-301) / 5e-301 = 1
    batch = make_transition_batch([("a", 1e-300, [1]), ("a", 0, [1])])
    assert advantages(MaxRL(), batch) == pytest.approx([1, -1])


def test_maxrl_refuses_returns_below_zero(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1]), ("a", -0.5, [1])])
    with pytest.raises(
        RewardError, match=r"maxrl divides by the mean return, but a call has the return -0\.5, below 0"
    ):
        advantages(MaxRL(), batch)


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


@pytest.mark.parametrize("make", [GRPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline, GDPO])
@pytest.mark.parametrize("eps", [0, -1e-6, float("nan"), float("inf"), "1e-6", True])
def test_an_eps_that_is_no_positive_number_is_refused(make: Callable[..., AdvantageEstimator], eps: object) -> None:
    with pytest.raises(ConfigError, match="eps is"):
        make(eps=eps)
