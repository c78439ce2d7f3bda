"""LightningRL as a whole: what is trained, what is left out and why, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl import (
    GRPO,
    Comparison,
    Discounted,
    DrGRPO,
    Identical,
    LightningRL,
    Requirements,
    among_rollouts,
    builtin_credit_assigners,
    builtin_estimators,
    configured,
)
from spangrad.transitions import Fate, FloatArray, Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
ALGORITHM = LightningRL(Identical(), GRPO())


@dataclass(frozen=True)
class Fixed:
    """A plug-in's assigner and estimator in one, which gives what it was told to."""

    values: list[float]
    requirements: ClassVar[Requirements] = Requirements()

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        return (among_rollouts(batch, np.array(self.values)),)

    def advantages(self, _comparisons: Sequence[Comparison]) -> FloatArray:
        return np.array(self.values)


def test_a_step_keeps_useful_groups_and_says_why_it_drops_the_others(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [
            ("mixed", 1, [2, 2]),
            ("mixed", 0, [4]),
            ("solved", 1, [2]),
            ("solved", 1, [2, 2]),
            ("alone", 0, [2]),
        ]
    )
    report = ALGORITHM.compute(batch)
    drop, alone = Reason.ZERO_VARIANCE, Reason.SINGLETON_GROUP
    assert report.reasons == (*[Reason.TRAINED] * 3, *[drop] * 3, alone)
    assert report.trained.tolist() == [True, True, True, False, False, False, False]
    assert report.advantages == pytest.approx([0.7071058, 0.7071058, -0.7071058, 0, 0, 0, 0])
    assert report.returns.tolist() == [1, 1, 0, 1, 1, 1, 0]
    # five rollouts count, those without signal too, so that few useful groups make a small step
    assert report.token_weights == pytest.approx([1 / 20, 1 / 20, 1 / 20, 0, 0, 0, 0])
    assert report.metrics == pytest.approx(
        {
            "rollouts": 5,
            "transitions": 7,
            "groups": 3,
            "zero_variance_groups": 1,
            "singleton_groups": 1,
            "too_long": 0,
            "trained_transitions": 3,
            "trained_rollouts": 2,
            "return_mean": 0.6,
            "return_min": 0,
            "return_max": 1,
            "advantage_abs_mean": 0.7071058,
        }
    )
    assert report.warnings == ("1 of 3 tasks have fewer than 2 usable rollouts; nothing was learnt from them",)


def test_the_ledger_has_a_row_with_numbers_for_every_transition(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [2]), ("a", 0, [3]), ("b", 1, [4])], call_rewards={(1, 0): 0.5})
    first, second, third = LightningRL(Identical(), DrGRPO()).compute(batch).ledger(step=7)
    assert (first.call_id, first.choice, first.rollout_id, first.attempt, first.step) == (
        "call-0-0",
        0,
        "rollout-0",
        0,
        7,
    )
    assert (first.fate, first.reason, first.tokens, first.detail) == (Fate.TRAINED, Reason.TRAINED, 2, "")
    assert (first.reward, first.episode_return, first.advantage) == (None, 1.0, 0.25)
    assert (second.reward, second.episode_return, second.advantage) == (0.5, 0.5, -0.25)
    assert (third.fate, third.reason, third.advantage) == (Fate.DROPPED, Reason.SINGLETON_GROUP, 0.0)
    assert third.detail == "too few usable rollouts of the task to compare it with"


def test_a_transition_too_long_for_the_learner_counts_in_the_statistics_but_is_not_trained(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1, [2, 9]), ("a", 0, [6])])
    whole = ALGORITHM.compute(batch)
    report = ALGORITHM.compute(batch, max_sequence=3 + 6)
    assert report.reasons == (Reason.TRAINED, Reason.TOO_LONG, Reason.TRAINED)
    assert report.advantages.tolist() == [whole.advantages[0], 0, whole.advantages[2]]
    assert report.token_weights.tolist() == [whole.token_weights[0], 0, whole.token_weights[2]]
    assert report.metrics["too_long"] == 1
    assert report.warnings == ("1 of 3 calls are longer than the learner takes and were left out",)


def test_rewards_that_differ_only_by_rounding_are_equal(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 0.1 + 0.2, [1]), ("a", 0.3, [1]), ("b", 1e9, [1]), ("b", 1e9 + 1e-7, [1])])
    report = ALGORITHM.compute(batch)
    assert set(report.reasons) == {Reason.ZERO_VARIANCE}
    assert report.metrics["zero_variance_groups"] == 2
    assert not report.advantages.any()
    assert report.warnings == (
        "All rollouts of each task have the same return: there is nothing to learn from this step",
    )


def test_a_small_difference_that_is_meant_is_kept(make_transition_batch: MakeBatch) -> None:
    report = ALGORITHM.compute(make_transition_batch([("a", 1e-6, [1]), ("a", 0.0, [1])]))
    assert set(report.reasons) == {Reason.TRAINED}


def test_discounting_alone_does_not_make_equal_rollouts_differ(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 1, [1, 1])])
    report = LightningRL(Discounted(gamma=0.5), GRPO()).compute(batch)
    assert set(report.reasons) == {Reason.ZERO_VARIANCE}


def test_a_step_given_up_drops_what_would_have_been_trained_and_keeps_the_other_reasons(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1, [1]), ("a", 0, [1]), ("b", 1, [1])])
    report = ALGORITHM.compute(batch).without_update(Reason.BATCH_FAILED)
    assert report.reasons == (Reason.BATCH_FAILED, Reason.BATCH_FAILED, Reason.SINGLETON_GROUP)
    assert not report.trained.any()
    assert not report.advantages.any()
    assert not report.token_weights.any()
    assert (report.metrics["trained_transitions"], report.metrics["trained_rollouts"]) == (0, 0)
    first = report.ledger(2)[0]
    assert (first.fate, first.detail) == (Fate.DROPPED, "too many rollouts of the step failed for it to be trusted")
    assert first.episode_return == 1.0


def test_an_empty_batch_gives_an_empty_report() -> None:
    report = ALGORITHM.compute(TransitionBatch(()))
    assert (len(report.advantages), report.reasons, report.ledger(1), report.warnings) == (0, (), (), ())
    assert report.metrics["rollouts"] == 0
    assert "return_mean" not in report.metrics


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0], r"gave values of shape \(1,\) for 2 transitions"),
        ([1.0, float("nan")], "gave 1 values that are not finite numbers"),
        ([float("inf"), float("nan")], "gave 2 values that are not finite numbers"),
    ],
)
def test_a_plugin_that_gives_no_finite_number_per_transition_is_named(
    make_transition_batch: MakeBatch, values: list[float], problem: str
) -> None:
    batch = make_transition_batch([("a", 1, [1]), ("a", 0, [1])])
    with pytest.raises(PluginError, match=f"The credit assigner 'Fixed' {problem}"):
        LightningRL(Fixed(values), GRPO()).compute(batch)
    with pytest.raises(PluginError, match=f"The advantage estimator 'Fixed' {problem}"):
        LightningRL(Identical(), Fixed(values)).compute(batch)


def test_an_estimator_that_needs_no_group_learns_from_a_single_rollout(make_transition_batch: MakeBatch) -> None:
    report = LightningRL(Identical(), Fixed([2.0])).compute(make_transition_batch([("a", 1, [1])]))
    assert report.reasons == (Reason.TRAINED,)
    assert report.metrics["singleton_groups"] == 0
    assert report.advantages.tolist() == [2.0]


def test_an_estimator_without_memory_passes_none_on(make_transition_batch: MakeBatch) -> None:
    report = ALGORITHM.compute(make_transition_batch([("a", 1, [1]), ("a", 0, [1])]), memory={"0/writer": 1.0})
    assert report.memory == {}


def test_the_built_in_names_make_what_they_say(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 0, [1])])
    assert sorted(builtin_credit_assigners()) == [
        "agent_share",
        "discounted",
        "function",
        "gigpo",
        "graph",
        "hgpo",
        "identical",
        "last_call",
        "progress",
        "return_to_go",
        "sum",
        "turn_rewards",
    ]
    assert sorted(builtin_estimators()) == [
        "dr_grpo",
        "gae",
        "gdpo",
        "grpo",
        "maxrl",
        "rae",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "rloo",
    ]
    credit = configured("credit assigner", "discounted", builtin_credit_assigners()["discounted"], {"gamma": 0.5})
    assert credit.comparisons(batch)[0].returns.tolist() == [0.5, 1.0, 0.0]
    for name, factory in builtin_estimators().items():
        estimator = configured("advantage estimator", name, factory, {})
        report = LightningRL(Identical(), estimator).compute(batch, values=[np.zeros(1)] * 3)
        assert report.advantages[0] > 0


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"advantage estimator 'grpo'.*'epsilon'.*Its options: eps"):
        configured("advantage estimator", "grpo", GRPO, {"epsilon": 1e-6})
    with pytest.raises(ConfigError, match=r"credit assigner 'identical'.*'gamma'.*Its options: it has none"):
        configured("credit assigner", "identical", Identical, {"gamma": 1.0})
    with pytest.raises(ConfigError, match="eps is 0"):
        configured("advantage estimator", "grpo", GRPO, {"eps": 0})
