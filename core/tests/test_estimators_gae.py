"""Generalised advantage estimation, by hand: over calls, over tokens, over calls side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import BackendError, ConfigError
from spangrad.lightningrl import GAE, Grouping, Identical, LightningRL, ValueEstimates
from spangrad.lightningrl.credit._steps import rewards_to_come
from spangrad.transitions import FloatArray, Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def rows(*values: Sequence[float]) -> list[FloatArray]:
    return [np.array(row, dtype=np.float64) for row in values]


def estimates(batch: TransitionBatch, values: Sequence[FloatArray | None], **options: Any) -> ValueEstimates:
    """Without whitening."""
    return GAE(whiten=False, **options).estimates(batch, values, batch.rollout_index)


def flat(values: Sequence[FloatArray] | None) -> FloatArray:
    assert values is not None
    return np.concatenate(values)


@pytest.fixture
def three_calls(make_transition_batch: MakeBatch) -> TransitionBatch:
    """Rewards 0.5, none and 1.0; of 2, 1 and 2 tokens."""
    return make_transition_batch([("task", 0.0, [2, 1, 2])], call_rewards={(0, 0): 0.5, (0, 2): 1.0})


@pytest.fixture
def side_by_side(make_transition_batch: MakeBatch) -> TransitionBatch:
    """A call, then two side by side with rewards 1 and none, then one; the rollout's reward is 2."""
    return make_transition_batch(
        [("task", 2.0, [1, 1, 1, 1])],
        call_rewards={(0, 1): 1.0},
        depths={(0, 0): 0, (0, 1): 1, (0, 2): 1, (0, 3): 2},
    )


def test_a_whole_call_is_one_action_worth_what_its_first_token_is(three_calls: TransitionBatch) -> None:
    values = rows([0.4, 9.0], [0.6], [0.2, 9.0])
    made = estimates(three_calls, values, gamma=0.9, lam=0.5)
    # A3 = 1 - 0.2 = 0.8
    # A2 = (0 + 0.9 x 0.2 - 0.6) + 0.45 x 0.8 = -0.42 + 0.36 = -0.06
    # A1 = (0.5 + 0.9 x 0.6 - 0.4) + 0.45 x -0.06 = 0.64 - 0.027 = 0.613
    assert made.advantages == pytest.approx([0.613, -0.06, 0.8])
    assert flat(made.targets.targets) == pytest.approx([1.013, 0.54, 1.0])
    assert flat(made.targets.before).tolist() == [0.4, 0.6, 0.2]
    assert made.returns == pytest.approx([1.013, 0.54, 1.0])
    assert made.token_advantages is None


def test_tokens_go_on_from_a_calls_last_to_the_next_calls_first(three_calls: TransitionBatch) -> None:
    values = rows([0.1, 0.2], [0.3], [0.4, 0.5])
    made = estimates(three_calls, values, level="token", gamma=0.9, lam=0.5)
    # backwards, the last token: 1 less 0.5
    # (0.9 x 0.5 - 0.4) + 0.45 x 0.5 = 0.275
    # (0.9 x 0.4 - 0.3) + 0.45 x 0.275 = 0.18375
    # (0.5 + 0.9 x 0.3 - 0.2) + 0.45 x 0.18375 = 0.6526875, the call's reward being that of its last token
    # (0.9 x 0.2 - 0.1) + 0.45 x 0.6526875 = 0.373709375
    expected = [0.373709375, 0.6526875, 0.18375, 0.275, 0.5]
    assert flat(made.token_advantages) == pytest.approx(expected)
    assert flat(made.targets.targets) == pytest.approx(np.add(expected, flat(values)))
    assert made.advantages == pytest.approx([0.5131984375, 0.18375, 0.3875])  # the means of 2, 1 and 2 tokens
    assert made.returns == pytest.approx([0.473709375, 0.48375, 0.675])


def test_the_rollouts_reward_is_that_of_the_last_call(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("task", 2.0, [1, 1])], call_rewards={(0, 1): 1.0})
    made = estimates(batch, rows([0.5], [0.25]), gamma=0.5, lam=0.0)
    # delta2 = 1 + 2 - 0.25: nothing is expected beyond the end; delta1 = 0.5 x 0.25 - 0.5
    assert made.advantages == pytest.approx([-0.375, 2.75])


def test_calls_side_by_side_share_what_comes_after_them_once(side_by_side: TransitionBatch) -> None:
    made = estimates(side_by_side, rows([1.0], [1.5], [0.5], [1.0]), gamma=0.5, lam=0.5)
    # A4 = 2 - 1 = 1; seen from before it is worth 1 + 0.5 x 1 = 1.5, and so 0.75 to the two calls of the step before
    # A2 = 1 + 0.75 - 1.5 = 0.25, A3 = 0 + 0.75 - 0.5 = 0.25
    # together they are worth (1.5 + 0.5 x 0.25) + (0.5 + 0.5 x 0.25) - 0.75 = 1.5: the future that both count, once
    # A1 = 0.5 x 1.5 - 1 = -0.25
    assert made.advantages == pytest.approx([-0.25, 0.25, 0.25, 1.0])


def test_a_step_that_is_not_there_discounts_all_the_same(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("task", 1.0, [1, 1])], depths={(0, 0): 0, (0, 1): 2})
    made = estimates(batch, rows([0.0], [0.5]), gamma=0.5, lam=0.0)
    assert made.advantages == pytest.approx([0.5**2 * 0.5, 0.5])


def test_a_call_without_a_value_is_taken_at_what_it_came_to(three_calls: TransitionBatch) -> None:
    known = rows([0.4, 9.0])[0], None, rows([0.2, 9.0])[0]
    made = estimates(three_calls, known, gamma=0.5, lam=0.0)
    # A3 = 1 - 0.2; the second call came to 0.5 x 0.2 = 0.1; A1 = 0.5 + 0.5 x 0.1 - 0.4
    assert made.advantages == pytest.approx([0.15, 0.0, 0.8])
    assert [len(row) for row in made.targets.targets] == [1, 0, 1]
    over_tokens = estimates(three_calls, (None, None, rows([0.2, 0.5])[0]), level="token", gamma=0.5, lam=0.0)
    # the third call came to 0.2 by its first value; 0.5 x 0.2 before; (0.5 + 0.5 x 0.1) x 0.5 before the first of two tokens
    assert over_tokens.returns == pytest.approx([0.275, 0.1, 0.25])
    assert [row.tolist() for row in over_tokens.token_advantages or ()][:2] == [[0, 0], [0]]


def test_the_defaults_are_the_papers_for_calls_and_no_discount_for_tokens() -> None:
    assert GAE().discounts == (0.99, 0.9)
    assert GAE(level="token").discounts == (1.0, 0.95)
    assert GAE(level="token", gamma=0.5, lam=0.25).discounts == (0.5, 0.25)


NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def valued_batches(draw: st.DrawFn, make: MakeBatch, *, longest: int = 1) -> tuple[TransitionBatch, list[FloatArray]]:
    """Up to three rollouts of calls, some side by side, some steps missing; and a value before each token."""
    shapes, rewards, depths = [], {}, {}
    for rollout in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=5))
        shapes.append((f"task-{rollout % 2}", draw(NUMBERS), lengths))
        depth = 0
        for call in range(len(lengths)):
            rewards[rollout, call], depths[rollout, call] = draw(NUMBERS), depth
            depth += draw(st.integers(0, 2))
    batch = make(shapes, call_rewards=rewards, depths=depths)
    sizes = [draw(st.lists(NUMBERS, min_size=n, max_size=n)) for n in batch.action_lengths.tolist()]
    return batch, rows(*sizes)


def to_come(batch: TransitionBatch, gamma: float) -> FloatArray:
    return rewards_to_come(batch, batch.call_rewards, batch.rollout_rewards, gamma)[0]


@given(data=st.data(), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_lambda_of_one_gives_the_rewards_to_come_less_the_value(
    make_transition_batch: MakeBatch, data: st.DataObject, gamma: float
) -> None:
    batch, values = data.draw(valued_batches(make_transition_batch))
    made = estimates(batch, values, gamma=gamma, lam=1.0)
    assert made.advantages == pytest.approx(to_come(batch, gamma) - flat(values))
    assert made.returns == pytest.approx(to_come(batch, gamma))


@given(data=st.data())
def test_over_tokens_too_where_nothing_is_discounted(make_transition_batch: MakeBatch, data: st.DataObject) -> None:
    batch, values = data.draw(valued_batches(make_transition_batch, longest=4))
    made = estimates(batch, values, level="token", lam=1.0)
    expected = np.repeat(to_come(batch, 1.0), batch.action_lengths)
    assert flat(made.token_advantages) == pytest.approx(expected - flat(values))


@given(data=st.data(), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_lambda_of_zero_gives_the_temporal_difference(
    make_transition_batch: MakeBatch, data: st.DataObject, gamma: float
) -> None:
    calls = data.draw(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6))
    outcome = data.draw(NUMBERS)
    given_rewards = {(0, k): reward for k, (reward, _) in enumerate(calls)}
    batch = make_transition_batch([("task", outcome, [1] * len(calls))], call_rewards=given_rewards)
    made = estimates(batch, rows(*([value] for _, value in calls)), gamma=gamma, lam=0.0)
    after = [gamma * value for _, value in calls[1:]] + [outcome]
    assert made.advantages == pytest.approx([r + n - v for (r, v), n in zip(calls, after, strict=True)])


@given(data=st.data(), gamma=st.sampled_from([0.5, 1.0]), lam=st.sampled_from([0.0, 0.5, 1.0]))
def test_values_that_tell_what_comes_leave_no_advantage(
    make_transition_batch: MakeBatch, data: st.DataObject, gamma: float, lam: float
) -> None:
    batch, _ = data.draw(valued_batches(make_transition_batch))
    made = estimates(batch, rows(*([value] for value in to_come(batch, gamma).tolist())), gamma=gamma, lam=lam)
    assert made.advantages == pytest.approx([0.0] * len(batch), abs=1e-9)


@given(data=st.data(), gamma=st.sampled_from([0.5, 1.0]), lam=st.sampled_from([0.0, 0.5, 1.0]))
def test_calls_of_one_token_are_the_same_at_both_levels(
    make_transition_batch: MakeBatch, data: st.DataObject, gamma: float, lam: float
) -> None:
    batch, values = data.draw(valued_batches(make_transition_batch))
    calls = GAE(gamma=gamma, lam=lam).estimates(batch, values, batch.rollout_index)
    tokens = GAE(level="token", gamma=gamma, lam=lam).estimates(batch, values, batch.rollout_index)
    assert flat(tokens.token_advantages) == pytest.approx(calls.advantages)
    assert flat(tokens.targets.targets) == pytest.approx(flat(calls.targets.targets))


@given(data=st.data(), level=st.sampled_from(["transition", "token"]))
def test_the_order_of_transitions_does_not_matter(
    make_transition_batch: MakeBatch, data: st.DataObject, level: Any
) -> None:
    batch, values = data.draw(valued_batches(make_transition_batch, longest=3))
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = TransitionBatch(tuple(batch.transitions[i] for i in order))
    straight = estimates(batch, values, level=level).advantages
    other = estimates(shuffled, [values[i] for i in order], level=level).advantages
    assert other == pytest.approx(straight[order])


def test_advantages_are_whitened_over_the_batch_and_targets_are_not(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1]), ("b", 0.0, [1])])
    report = LightningRL(Identical(), GAE()).compute(batch, values=rows([0.0], [0.0]))
    # mean 0.5, unbiased deviation 1/sqrt 2
    assert report.advantages == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)
    assert report.value_targets is not None
    assert flat(report.value_targets.targets).tolist() == [1.0, 0.0]


def test_every_rollout_weighs_the_same_in_that_or_every_call(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1, 1]), ("b", 0.0, [1])])
    values = rows(*[[0.0]] * 4)
    estimator = GAE(gamma=1.0, lam=1.0)
    by_rollout = LightningRL(Identical(), estimator).compute(batch, values=values)
    by_call = LightningRL(Identical(), estimator, grouping=Grouping(statistics="call")).compute(batch, values=values)
    # 1, 1, 1 and 0: over rollouts mean 1/2, variance 2 x 1/4; over calls mean 3/4, variance (3/16 + 9/16) / 3
    assert by_rollout.advantages == pytest.approx([0.5**0.5] * 3 + [-(0.5**0.5)], rel=1e-5)
    assert by_call.advantages == pytest.approx([0.5] * 3 + [-1.5], rel=1e-5)


def test_a_lone_rollout_teaches_and_equal_ones_do_too(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2]), ("b", 1.0, [1]), ("b", 1.0, [1])])
    algorithm = LightningRL(Identical(), GAE(whiten=False))
    report = algorithm.compute(batch, values=rows([0.25, 0.5], [0.5], [0.0]))
    assert report.advantages == pytest.approx([0.75, 0.5, 1.0])
    assert set(report.reasons) == {Reason.TRAINED}
    assert report.warnings == ()
    assert [entry.detail for entry in report.ledger(1)] == [f"value before the call {v}" for v in ("0.25", "0.5", "0")]
    assert [entry.episode_return for entry in report.ledger(1)] == [1.0, 1.0, 1.0]


def test_what_is_left_out_has_no_advantage_for_any_token(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2]), ("b", 0.0, [5])])  # the prompts have 3 tokens
    algorithm = LightningRL(Identical(), GAE(level="token", whiten=False))
    report = algorithm.compute(batch, values=[np.zeros(2), None], max_sequence=6)
    assert report.reasons == (Reason.TRAINED, Reason.TOO_LONG)
    assert [row.tolist() for row in report.token_advantages or ()] == [[0.95, 1.0], [0.0] * 5]
    dropped = report.without_update(Reason.BATCH_FAILED)
    assert flat(dropped.token_advantages).any() == False  # noqa: E712 - numpy's
    assert dropped.reasons == (Reason.BATCH_FAILED, Reason.TOO_LONG)


def test_an_empty_step_needs_no_values() -> None:
    assert len(LightningRL(Identical(), GAE()).compute(TransitionBatch(())).advantages) == 0


@pytest.mark.parametrize(
    "options",
    [{"level": "call"}, {"gamma": 1.5}, {"lam": -0.1}, {"lam": True}, {"whiten": 1}, {"eps": 0}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(options))} is "):
        GAE(**options)


def test_an_eps_is_refused_where_no_deviation_is_divided_by() -> None:
    with pytest.raises(ConfigError, match="eps is added to the deviation that whiten divides by"):
        GAE(whiten=False, eps=1e-6)
    assert GAE(eps=1e-3).eps == 1e-3


def test_the_ledger_says_what_the_one_advantage_of_several_tokens_is(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [2])])
    # gamma 1, lam 0.95, no values: the last token has the advantage 1, the one before 0.95.
    report = LightningRL(Identical(), GAE(level="token", whiten=False)).compute(batch, values=[np.zeros(2)])
    (entry,) = report.ledger(1)
    assert entry.detail == "value before the call 0; the advantage is the mean of its 2 tokens', from 0.95 to 1"
    assert entry.advantage == pytest.approx(0.975)


def test_values_that_cannot_be_are_refused(three_calls: TransitionBatch) -> None:
    algorithm = LightningRL(Identical(), GAE())
    with pytest.raises(ConfigError, match="gae goes by values, and none were given"):
        algorithm.compute(three_calls)
    with pytest.raises(BackendError, match="There are values of 1 calls for 3 transitions"):
        algorithm.compute(three_calls, values=rows([0.0, 0.0]))
    for wrong in ([0.0], [0.0, np.nan]):
        with pytest.raises(BackendError, match="values of call call-0-0 are not one finite number for each of its 2"):
            algorithm.compute(three_calls, values=rows(wrong, [0.0], [0.0, 0.0]))
