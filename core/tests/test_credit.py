"""Credit assigners, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import ConfigError
from spangrad.lightningrl import CreditAssigner, Discounted, Identical, rollout_returns
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def returns(credit: CreditAssigner, batch: TransitionBatch) -> FloatArray:
    (comparison,) = credit.comparisons(batch)
    return comparison.returns


def test_identical_credit_gives_every_call_the_rollout_reward_plus_all_call_rewards(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [2, 2, 2]), ("a", 0.5, [2])], call_rewards={(0, 0): 0.25, (0, 2): -1.0, (1, 0): 2.0}
    )
    assert returns(Identical(), batch).tolist() == [0.25, 0.25, 0.25, 2.5]
    assert rollout_returns(batch).tolist() == [0.25, 2.5]


def test_discounting_follows_the_order_of_the_calls(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2, 2])], call_rewards={(0, 0): 0.1, (0, 1): 0.2})
    # G_2 = 1, G_1 = 0.2 + 0.5 * 1, G_0 = 0.1 + 0.5 * 0.7
    assert returns(Discounted(gamma=0.5), batch) == pytest.approx([0.45, 0.7, 1.0])


def test_discounting_does_not_follow_the_order_of_the_rows(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2, 2]), ("b", -1.0, [2, 2])], call_rewards={(0, 0): 0.1})
    order = [3, 2, 0, 4, 1]
    shuffled = TransitionBatch(tuple(batch.transitions[i] for i in order))
    credit = Discounted(gamma=0.5)
    assert returns(credit, shuffled) == pytest.approx(returns(credit, batch)[order])


def test_calls_made_side_by_side_are_equally_far_from_the_end_and_share_no_rewards(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [2, 2, 2, 2])],
        depths={(0, 0): 0, (0, 1): 1, (0, 2): 1, (0, 3): 2},
        call_rewards={(0, 1): 0.3, (0, 2): 0.5},
    )
    # G_3 = 1; both middle calls see 0.5 to come; the first sees 0.5 * (0.3 + 0.5 + 0.5)
    assert returns(Discounted(gamma=0.5), batch) == pytest.approx([0.65, 0.8, 1.0, 1.0])


def test_choices_of_one_call_are_equally_far_from_the_end(make_transition_batch: MakeBatch) -> None:
    first, second, last = make_transition_batch([("a", 1.0, [2, 2, 2])]).transitions
    second_choice = type(first)(
        **{name: getattr(second, name) for name in second.__slots__} | {"call_id": first.call_id, "choice": 1}
    )
    batch = TransitionBatch((first, second_choice, last))
    earned = returns(Discounted(gamma=0.5), batch)
    assert earned[0] == earned[1]
    assert earned[2] == 1.0


def test_a_step_that_was_left_out_still_counts_as_a_step(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2])], depths={(0, 0): 0, (0, 1): 3})
    assert returns(Discounted(gamma=0.5), batch) == pytest.approx([0.125, 1.0])


def test_gamma_zero_leaves_each_call_only_its_own_reward_and_the_last_the_rollouts(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1.0, [2, 2])], call_rewards={(0, 0): 0.25})
    assert returns(Discounted(gamma=0), batch).tolist() == [0.25, 1.0]


@given(
    rollouts=st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(-10, 10), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
        min_size=1,
        max_size=5,
    )
)
def test_without_discount_and_call_rewards_both_assigners_agree(
    make_transition_batch: MakeBatch, rollouts: list[tuple[str, float, list[int]]]
) -> None:
    batch = make_transition_batch(rollouts)
    assert np.array_equal(returns(Discounted(gamma=1.0), batch), returns(Identical(), batch))


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan"), float("inf"), True, "0.9", None])
def test_a_gamma_that_is_no_number_from_0_to_1_is_refused(gamma: object) -> None:
    with pytest.raises(ConfigError, match="gamma is"):
        Discounted(gamma=gamma)  # type: ignore[arg-type]  # what a configuration may hold


def test_an_empty_batch_has_no_returns() -> None:
    batch = TransitionBatch(())
    assert returns(Identical(), batch).shape == (0,)
    assert returns(Discounted(gamma=0.9), batch).shape == (0,)
