"""GDPO: each reward by name is normalised by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import RewardError
from spangrad.lightningrl import GDPO, GRPO, Discounted, Grouping, Identical, LightningRL
from spangrad.transitions import FloatArray, Reason, RewardWeights, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
MakeNamed = Callable[..., TransitionBatch]
Pair = tuple[float, float]


@pytest.fixture(scope="module")
def make_named(make_transition_batch: MakeBatch) -> MakeNamed:
    """Makes rollouts of one call each from (task, (correct, form)); the reward is the sum, by weights if there are any."""

    def make(rewards: Sequence[tuple[str, Pair]], weights: Mapping[str, float] | None = None) -> TransitionBatch:
        named = [{"correct": correct, "form": form} for _, (correct, form) in rewards]
        total = RewardWeights(weights or {}).total
        shapes = [(task, total(parts), [1]) for (task, _), parts in zip(rewards, named, strict=True)]
        return make_transition_batch(shapes, rollout_components=dict(enumerate(named)))

    return make


def pair_of(totals: Pair) -> list[tuple[str, Pair]]:
    """Two rollouts of a task with these sums of two rewards of 0 or 1."""
    parts = {0.0: (0.0, 0.0), 1.0: (1.0, 0.0), 2.0: (1.0, 1.0)}
    return [("a", parts[total]) for total in totals]


def advantages(estimator: GRPO | GDPO, batch: TransitionBatch, **fields: object) -> FloatArray:
    return LightningRL(Identical(), estimator, **fields).compute(batch).advantages  # type: ignore[arg-type]  # its fields


def test_grpo_cannot_tell_apart_what_gdpo_can(make_named: MakeNamed) -> None:
    # The example of arXiv 2601.05242, section 3: two rollouts, two rewards of 0 or 1, sums (0, 1), (0, 2) and (1, 2).
    half = 1 / sqrt(2)
    for totals in ((0.0, 1.0), (0.0, 2.0), (1.0, 2.0)):
        assert advantages(GRPO(eps=1e-12), make_named(pair_of(totals))) == pytest.approx([-half, half])

    # Side by side in one batch, as three tasks. Normalised one by one: (0, 1) and (1, 2) differ in one reward, so
    # -+ 1/sqrt(2); (0, 2) differs in both, so -+ sqrt(2). Over the six: mean 0, std sqrt((4 / 2 + 2 * 2) / 5) = sqrt(6 / 5).
    tasks = {"a": (0.0, 1.0), "b": (0.0, 2.0), "c": (1.0, 2.0)}
    batch = make_named([(task, parts) for task, totals in tasks.items() for _, parts in pair_of(totals)])
    std = sqrt(6 / 5)
    expected = np.array([-half, half, -sqrt(2), sqrt(2), -half, half]) / std
    assert advantages(GDPO(eps=1e-12), batch) == pytest.approx(expected)


def test_weights_weigh_normalised_rewards_whatever_their_size(make_named: MakeNamed) -> None:
    # correct 100 and 0 -> +-1/sqrt(2); form 0 and 0.01 -> -+1/sqrt(2); weights 1 and 0.5 leave +-0.5/sqrt(2)
    # the second task has nothing to tell; over the four: mean 0, std sqrt((2 * 0.125) / 3)
    weights = {"correct": 1.0, "form": 0.5}
    batch = make_named([("a", (100, 0)), ("a", (0, 0.01)), ("b", (1, 1)), ("b", (1, 1))], weights)
    one = 0.5 / sqrt(2) / sqrt(0.25 / 3)
    found = advantages(GDPO(eps=1e-12), batch, component_weights=RewardWeights(weights))
    assert found == pytest.approx([one, -one, 0, 0])


def test_a_reward_of_no_weight_has_no_say(make_named: MakeNamed) -> None:
    weights = {"correct": 1.0, "form": 0.0}
    batch = make_named([("a", (1, 0)), ("a", (0, 1)), ("b", (1, 0)), ("b", (1, 1))], weights)
    report = LightningRL(Identical(), GDPO(), component_weights=RewardWeights(weights)).compute(batch)
    assert report.reasons == (Reason.TRAINED, Reason.TRAINED, Reason.ZERO_VARIANCE, Reason.ZERO_VARIANCE)


def test_rewards_that_cancel_out_in_the_sum_are_no_lack_of_signal(make_named: MakeNamed) -> None:
    batch = make_named([("a", (3, 0)), ("a", (1, 2)), ("a", (0, 3)), ("a", (2, 1))])
    assert set(LightningRL(Identical(), GRPO()).compute(batch).reasons) == {Reason.ZERO_VARIANCE}
    weighted = RewardWeights({"correct": 2.0, "form": 1.0})
    report = LightningRL(Identical(), GDPO(), component_weights=weighted).compute(batch)
    assert set(report.reasons) == {Reason.TRAINED}
    assert report.metrics["zero_variance_groups"] == 0
    assert report.advantages[0] > report.advantages[3] > report.advantages[1] > report.advantages[2]


def test_the_ledger_shows_the_return_of_all_rewards_together(make_named: MakeNamed) -> None:
    weights = {"correct": 1.0, "form": 0.5}
    batch = make_named([("a", (1, 1)), ("a", (0, 1))], weights)
    report = LightningRL(Identical(), GDPO(), component_weights=RewardWeights(weights)).compute(batch)
    assert report.returns.tolist() == [1.5, 0.5]


def test_rewards_of_calls_are_credited_by_name_too(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1])],
        call_rewards={(0, 0): -1.0},
        components={(0, 0): {"tool": -1.0}},
        rollout_components={0: {"correct": 1.0}, 1: {"correct": 0.0}},
    )
    # correct: to come 0.5, 1 and 0; rollouts 0.75 and 0, mean 0.375; squares (1/64 + 25/64) / 2 + 9/64 = 11/32
    correct = np.array([0.125, 0.625, -0.375]) / sqrt(11 / 32)
    # tool: to come -1, 0 and 0; rollouts -0.5 and 0, mean -0.25; squares (9/16 + 1/16) / 2 + 1/16 = 3/8
    tool = np.array([-0.75, 0.25, 0.25]) / sqrt(3 / 8)
    first, second, other = total = correct + tool
    # each reward's rollouts have the mean 0, so the sum's have; again a rollout counts by the mean of its calls' squares
    std = sqrt((first**2 + second**2) / 2 + other**2)
    report = LightningRL(Discounted(gamma=0.5), GDPO(eps=1e-12)).compute(batch)
    assert report.advantages == pytest.approx(total / std)
    assert report.warnings == ()


def test_agents_may_be_kept_apart(make_transition_batch: MakeBatch) -> None:
    # each agent's calls: rewards 1 and 0 of one name, so +-1/sqrt(2) in its own group; four units of 0.5: std sqrt(2 / 3)
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])],
        agents={(0, 0): "writer", (0, 1): "critic", (1, 0): "writer", (1, 1): "critic"},
        rollout_components={0: {"x": 1.0, "y": 0.0}, 1: {"x": 0.0, "y": 0.0}},
    )
    one = 1 / sqrt(2) / sqrt(2 / 3)
    found = advantages(GDPO(eps=1e-12), batch, grouping=Grouping(per_agent=True))
    assert found == pytest.approx([one, one, -one, -one])


def test_a_single_reward_is_normalised_twice_and_the_user_is_told(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1]), ("a", 0.0, [1]), ("b", 2.0, [1]), ("b", 2.0, [1])])
    report = LightningRL(Identical(), GDPO(eps=1e-12)).compute(batch)
    # in the task +-1/sqrt(2); over the four: std sqrt(1 / 3)
    one = 1 / sqrt(2) / sqrt(1 / 3)
    assert report.advantages == pytest.approx([one, -one, 0, 0])
    assert report.warnings[0].startswith("The estimator compares each reward by itself, but there is only one")


def test_a_rollout_without_one_of_the_rewards_has_0_there_and_the_user_is_told(
    make_transition_batch: MakeBatch,
) -> None:
    shapes = [("a", 2.0, [1]), ("a", 1.0, [1]), ("a", 0.0, [1])]
    parts = [{"x": 1.0, "y": 1.0}, {"x": 1.0}, {"x": 0.0, "y": 0.0}]
    report = LightningRL(Identical(), GDPO()).compute(
        make_transition_batch(shapes, rollout_components=dict(enumerate(parts)))
    )
    filled = [{"y": 0.0, **part} for part in parts]
    same = make_transition_batch(shapes, rollout_components=dict(enumerate(filled)))
    assert report.advantages.tolist() == LightningRL(Identical(), GDPO()).compute(same).advantages.tolist()
    assert report.warnings == ("1 of 3 rollouts have no reward 'y'; it counts as 0 there",)


def test_a_reward_too_large_to_square_is_refused_though_its_weight_hides_it_in_the_sum(make_named: MakeNamed) -> None:
    weights = {"correct": 1.0, "form": 0.0}
    batch = make_named([("a", (1, 1e40)), ("a", (0, 0))], weights)
    with pytest.raises(RewardError, match=r"1e\+40 of rollout rollout-0 is too large"):
        LightningRL(Identical(), GDPO(), component_weights=RewardWeights(weights)).compute(batch)


rewards = st.lists(
    st.tuples(st.sampled_from("ab"), st.tuples(st.integers(-4, 4).map(float), st.integers(-4, 4).map(float))),
    min_size=1,
    max_size=8,
)


@given(rewards=rewards, factor=st.sampled_from([0.25, 8.0]), constant=st.integers(-3, 3))
def test_scaling_and_shifting_one_reward_alone_changes_nothing(
    make_named: MakeNamed, rewards: list[tuple[str, Pair]], factor: float, constant: int
) -> None:
    moved = [(task, (correct, form * factor + constant)) for task, (correct, form) in rewards]
    before = advantages(GDPO(), make_named(rewards))
    assert advantages(GDPO(), make_named(moved)) == pytest.approx(before, abs=1e-6)


@given(rewards=rewards)
def test_the_advantages_of_a_step_have_mean_0_and_at_most_deviation_1(
    make_named: MakeNamed, rewards: list[tuple[str, Pair]]
) -> None:
    found = advantages(GDPO(), make_named(rewards))
    assert found.sum() == pytest.approx(0.0, abs=1e-6)
    assert (found**2).sum() <= max(len(found) - 1, 0) + 1e-9
