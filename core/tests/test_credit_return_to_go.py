"""Rewards to come, and the outcome beside them; their baselines, against numbers worked out by hand and by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from spangrad.errors import ConfigError
from spangrad.lightningrl import (
    GRPO,
    RLOO,
    AdvantageEstimator,
    CreditAssigner,
    Discounted,
    DrGRPO,
    Identical,
    ReturnToGo,
    TurnRewards,
)
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def test_return_to_go_leaves_out_what_came_before(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2, 2])], call_rewards={(0, 0): 0.5, (0, 1): 0.25})
    (plain,) = ReturnToGo().comparisons(batch)
    (discounted,) = ReturnToGo(gamma=0.5).comparisons(batch)
    assert plain.returns.tolist() == [1.75, 1.25, 1.0]
    # G_2 = 1, G_1 = 0.25 + 0.5, G_0 = 0.5 + 0.375
    assert discounted.returns.tolist() == [0.875, 0.75, 1.0]


def test_the_baseline_of_return_to_go_is_the_mean_of_whole_returns(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2, 2]), ("a", 0.0, [2])], call_rewards={(0, 0): 0.5})
    # whole returns 1.5 and 0: the mean is 0.75, however many calls the first one made
    assert DrGRPO().advantages(ReturnToGo().comparisons(batch)).tolist() == [0.75, 0.25, 0.25, -0.75]


def test_the_whole_return_counts_all_calls_of_a_first_step_made_side_by_side(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1, 1]), ("a", 0.0, [1])],
        call_rewards={(0, 0): 0.5, (0, 1): 0.25},
        depths={(0, 0): 0, (0, 1): 0, (0, 2): 1},
    )
    (comparison,) = ReturnToGo().comparisons(batch)
    assert comparison.returns.tolist() == [1.5, 1.25, 1.0, 0.0]
    # 0.5 + 0.25 + 1 seen from the first step, and 0
    assert comparison.group_means.tolist() == [0.875]


def test_turn_rewards_compare_outcome_and_calls_apart(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])], call_rewards={(0, 1): -0.5, (1, 0): 0.25, (1, 1): 0.25}
    )
    outcome, calls = TurnRewards(omega=0.5).comparisons(batch)
    assert outcome.returns.tolist() == [1, 1, 0, 0]
    assert calls.returns.tolist() == [-0.5, -0.5, 0.5, 0.25]
    assert calls.weight == 0.5
    # outcome: 0.5 and -0.5; calls around (-0.5 + 0.5) / 2 = 0, halved
    assert DrGRPO().advantages((outcome, calls)).tolist() == [0.25, 0.25, -0.25, -0.375]


def test_turn_rewards_weigh_the_same_however_small_the_calls_rewards_are(make_transition_batch: MakeBatch) -> None:
    shape = [("a", 1.0, [1]), ("a", 0.0, [1])]
    large = make_transition_batch(shape, call_rewards={(1, 0): 8.0})
    small = make_transition_batch(shape, call_rewards={(1, 0): 0.125})
    # outcome +-1/sqrt(2), calls -+1/sqrt(2): they cancel, at any size
    for batch in (large, small):
        assert GRPO(eps=1e-12).advantages(TurnRewards().comparisons(batch)) == pytest.approx([0, 0], abs=1e-9)


def test_without_call_rewards_turn_rewards_and_return_to_go_are_identical_credit(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 0.5, [1]), ("b", 1.0, [1]), ("b", 0.0, [1, 1, 1])])
    expected = GRPO().advantages(Identical().comparisons(batch))
    for credit in (ReturnToGo(), TurnRewards()):
        assert GRPO().advantages(credit.comparisons(batch)) == pytest.approx(expected)


@pytest.mark.parametrize("omega", [0, -1, float("inf"), float("nan"), "1", True])
def test_a_weight_that_would_do_nothing_or_is_no_number_is_refused(omega: object) -> None:
    with pytest.raises(ConfigError, match="omega is"):
        TurnRewards(omega=omega)  # type: ignore[arg-type]  # what a configuration may hold


# A small problem of stopping: after each of the first two calls the policy stops with probability p; every call earns 1. With q
# = 1 - p the expected return is J = 1 + q + q^2, so dJ/dp = -(1 + 2q): stopping loses all that would have come.
CALLS = (1, 2, 3)


def probability(calls: int, p: float) -> float:
    return {1: p, 2: (1 - p) * p, 3: (1 - p) ** 2}[calls]


def scores(calls: int, p: float) -> list[float]:
    """d log pi / dp of each call's choice between stopping and going on; the third call has none."""
    return [-1 / (1 - p)] * (calls - 1) + ([1 / p] if calls < 3 else [0.0])


def expected_gradient(advantages: Callable[[tuple[int, int]], FloatArray], p: float) -> float:
    """The exact mean, over all pairs of rollouts, of the gradient that a pair's advantages give, per rollout."""
    total = 0.0
    for pair in product(CALLS, CALLS):
        direction = np.array([score for calls in pair for score in scores(calls, p)])
        total += float(np.prod([probability(calls, p) for calls in pair]) * (advantages(pair) @ direction) / 2)
    return total


def all_rewarded(pair: tuple[int, int]) -> Iterator[tuple[tuple[int, int], float]]:
    yield from (((rollout, call), 1.0) for rollout, calls in enumerate(pair) for call in range(calls))


def gradient(make: MakeBatch, credit: CreditAssigner, estimator: AdvantageEstimator, p: float) -> float:
    def advantages(pair: tuple[int, int]) -> FloatArray:
        batch = make([("a", 0.0, [1] * calls) for calls in pair], call_rewards=dict(all_rewarded(pair)))
        return estimator.advantages(credit.comparisons(batch))

    return expected_gradient(advantages, p)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("credit", [ReturnToGo(), TurnRewards(), Identical()], ids=lambda c: type(c).__name__)
def test_the_expected_gradient_of_stopping_is_the_true_one(
    make_transition_batch: MakeBatch, credit: CreditAssigner, p: float
) -> None:
    true = -(1 + 2 * (1 - p))
    assert gradient(make_transition_batch, credit, RLOO(), p) == pytest.approx(true)
    # the mean of two counts the rollout itself, which takes half of its own effect back
    assert gradient(make_transition_batch, credit, DrGRPO(), p) == pytest.approx(true / 2)


def test_a_baseline_of_the_average_call_is_biased_where_it_counts_the_rollout_itself(
    make_transition_batch: MakeBatch,
) -> None:
    # p = 1/2. The average call of 1, 2 and 3 calls has 1, 1.5 and 2 to come. Of that, dr_grpo subtracts half from every call:
    # E[sum of scores * average / 2], with sums of scores 2, -2 + 2 = 0 and -2 - 2 = -4, is (1/2 * 2 * 1 - 1/4 * 4 * 2) / 2 = -1/2.
    assert gradient(make_transition_batch, Discounted(gamma=1), RLOO(), 0.5) == pytest.approx(-2)
    assert gradient(make_transition_batch, Discounted(gamma=1), DrGRPO(), 0.5) == pytest.approx(-2 + 0.5)


def test_a_baseline_per_turn_index_would_hide_the_loss_of_stopping() -> None:
    # Subtracting the mean reward of each turn, 1, from that turn's reward leaves 0 of every reward: whether a rollout goes on
    # makes no difference any more, although each further call earns 1.
    def advantages(pair: tuple[int, int]) -> FloatArray:
        rewards = [np.ones(calls) for calls in pair]
        baselines = [np.mean([reward[turn] for reward in rewards if len(reward) > turn]) for turn in range(max(pair))]
        return np.concatenate([np.cumsum((reward - baselines[: len(reward)])[::-1])[::-1] for reward in rewards])

    assert expected_gradient(advantages, 0.5) == 0.0
