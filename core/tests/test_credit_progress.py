"""Credit for changes of a state's score, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import ConfigError
from spangrad.lightningrl import GRPO, DrGRPO, LightningRL, Progress
from spangrad.transitions import FloatArray, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
Scores = list[float | None]
quarters = st.integers(-8, 8).map(lambda n: n / 4)


def progress(make: MakeBatch, scores: Scores, *, final: float | None = None, gamma: float = 0.5) -> FloatArray:
    """The credit of a rollout's calls, which were made in states of these scores."""
    batch = make(
        [("a", 0.0, [1] * len(scores))],
        scores={(0, call): score for call, score in enumerate(scores) if score is not None},
        rollout_components={} if final is None else {0: {"score": final}},
    )
    return Progress(gamma=gamma).comparisons(batch)[1].returns


def test_with_gamma_zero_each_call_earns_the_change_it_made(make_transition_batch: MakeBatch) -> None:
    # 0 -> 0.5 -> 0.25 -> 1
    assert progress(make_transition_batch, [0, 0.5, 0.25], final=1, gamma=0).tolist() == [0.5, -0.25, 0.75]


def test_a_change_is_shared_with_the_calls_before_it_in_halving_parts(make_transition_batch: MakeBatch) -> None:
    # The last call's change of 7 is shared 4 : 2 : 1, the first one's of 1 is its own.
    assert progress(make_transition_batch, [0, 1, 1], final=8).tolist() == [1 + 1, 2, 4]


def test_with_gamma_one_a_change_is_shared_evenly(make_transition_batch: MakeBatch) -> None:
    assert progress(make_transition_batch, [0, 0, 0], final=3, gamma=1).tolist() == [1, 1, 1]


def test_standing_still_and_going_in_circles_earn_nothing(make_transition_batch: MakeBatch) -> None:
    assert progress(make_transition_batch, [0.5, 0.5, 0.5], final=0.5).tolist() == [0, 0, 0]
    assert progress(make_transition_batch, [0, 1, 0, 1, 0], final=0, gamma=1).sum() == pytest.approx(0, abs=1e-12)


def test_without_a_final_score_the_last_call_changed_nothing(make_transition_batch: MakeBatch) -> None:
    assert progress(make_transition_batch, [0, 0.5], gamma=0).tolist() == [0.5, 0]


def test_what_happened_without_a_score_counts_for_the_last_call_before_the_next_one(
    make_transition_batch: MakeBatch,
) -> None:
    assert progress(make_transition_batch, [None, 0, None, 1], final=None, gamma=0).tolist() == [0, 0, 1, 0]
    assert progress(make_transition_batch, [0, None, None], final=1, gamma=0).tolist() == [0, 0, 1]


def test_calls_made_side_by_side_each_get_what_their_step_earned(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 0.0, [1, 1, 1])],
        depths={(0, 0): 0, (0, 1): 0, (0, 2): 1},
        # the step's score is the mean of its calls', 0.5
        scores={(0, 0): 0.25, (0, 1): 0.75, (0, 2): 1.0},
    )
    assert Progress(gamma=0).comparisons(batch)[1].returns.tolist() == [0.5, 0.5, 0]


def test_the_distance_counts_steps_that_were_left_out(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 0.0, [1, 1])],
        depths={(0, 0): 0, (0, 1): 2},
        scores={(0, 0): 0.0, (0, 1): 0.0},
        rollout_components={0: {"score": 5.0}},
    )
    # shared 4 : 1 over a distance of 2
    assert Progress(gamma=0.5).comparisons(batch)[1].returns.tolist() == [1, 4]


def test_no_mean_is_subtracted_so_a_further_call_costs_nothing(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1])],
        scores={(0, 0): 0.0, (0, 1): 0.5, (1, 0): 0.0},
        rollout_components={0: {"score": 0.5}},
    )
    # outcome +-0.5; progress 0.5, 0 and 0
    assert DrGRPO().advantages(Progress(gamma=0).comparisons(batch)).tolist() == [1.0, 0.5, -0.5]
    # the progress' deviation: its mean square in the first rollout, 0.125, and in the second, 0
    values = GRPO(eps=1e-12).advantages(Progress(gamma=0).comparisons(batch))
    assert values == pytest.approx([0.5**0.5 + 0.5 / 0.125**0.5, 0.5**0.5, -(0.5**0.5)])


def test_a_rollout_without_any_score_has_its_outcome_only(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1]), ("a", 0.0, [1])], scores={(0, 0): 0.0}, rollout_components={0: {"score": 1.0}}
    )
    outcome, part = Progress().comparisons(batch)
    assert outcome.compared.tolist() == [True, True]
    assert part.compared.tolist() == [True, False]
    # the one that has scores is alone with them
    assert LightningRL(Progress(), DrGRPO()).compute(batch).advantages.tolist() == [0.5, -0.5]


def test_a_batch_without_scores_is_refused_with_the_call_that_gives_them(make_transition_batch: MakeBatch) -> None:
    with pytest.raises(ConfigError, match=r"no call has one.*rollout\.state\(key, score=\.\.\.\)"):
        Progress().comparisons(make_transition_batch([("a", 1.0, [1])]))


@given(scores=st.lists(quarters, min_size=1, max_size=7), final=quarters, gamma=st.sampled_from([0, 0.3, 0.9, 1]))
def test_the_credits_of_a_rollout_sum_to_its_last_score_less_its_first(
    make_transition_batch: MakeBatch, scores: list[float], final: float, gamma: float
) -> None:
    earned = progress(make_transition_batch, list(scores), final=final, gamma=gamma)
    assert earned.sum() == pytest.approx(final - scores[0], abs=1e-9)


@given(scores=st.lists(quarters, min_size=2, max_size=7), constant=quarters, gamma=st.sampled_from([0, 0.5, 1]))
def test_a_constant_added_to_all_scores_changes_nothing(
    make_transition_batch: MakeBatch, scores: list[float], constant: float, gamma: float
) -> None:
    moved = progress(make_transition_batch, [score + constant for score in scores], gamma=gamma)
    assert moved == pytest.approx(progress(make_transition_batch, list(scores), gamma=gamma), abs=1e-9)


@given(scores=st.lists(quarters, min_size=2, max_size=7), gamma=st.sampled_from([0, 0.5, 1]))
def test_scores_of_twice_the_size_earn_twice_as_much(
    make_transition_batch: MakeBatch, scores: list[float], gamma: float
) -> None:
    doubled = progress(make_transition_batch, [2 * score for score in scores], gamma=gamma)
    assert doubled == pytest.approx(2 * progress(make_transition_batch, list(scores), gamma=gamma), abs=1e-9)


def test_an_empty_batch_has_no_progress() -> None:
    assert [c.returns.shape for c in Progress().comparisons(TransitionBatch(()))] == [(0,), (0,)]
    assert np.isfinite(DrGRPO().advantages(Progress().comparisons(TransitionBatch(())))).all()
