"""Rewards by name: what they are, and how weights make one reward of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from spangrad.capture import named_rewards
from spangrad.errors import RewardError
from spangrad.rollouts import Judges, RolloutJob, RolloutResult, Task
from spangrad.store import RewardRecord, RolloutRecord
from spangrad.transitions import Call, Choice, Reason, RewardWeights, components_of, extract

MakeRollout = Callable[..., RolloutRecord]
MakeReward = Callable[..., RewardRecord]
MakeCall = Callable[..., Call]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, {"reward": 1.0}),
        (True, {"reward": 1.0}),
        ({"correct": 1, "form": 0.25}, {"correct": 1.0, "form": 0.25}),
        ({"correct": np.float32(0.5)}, {"correct": 0.5}),
    ],
)
def test_a_judge_gives_one_reward_or_several_by_name(given: object, expected: Mapping[str, float]) -> None:
    assert named_rewards(given, giver="The judge") == expected


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "The judge is an empty mapping"),
        ({"correct": None}, "The judge, 'correct', is None, not a number"),
        ({"correct": 1, "form": float("nan")}, "The judge, 'form', is nan"),
        ({1: 1.0}, "The judge has int 1 for a name"),
        ({"": 1.0}, "The judge has str '' for a name"),
        ("good", "The judge is str 'good', not a number"),
    ],
)
def test_what_is_no_reward_is_refused_with_its_name(given: object, complaint: str) -> None:
    with pytest.raises(RewardError, match=complaint):
        named_rewards(given, giver="The judge")


def test_without_weights_every_reward_counts_as_it_is() -> None:
    weights = RewardWeights()
    assert weights.total({"correct": 1.0, "form": 0.25}) == 1.25
    assert (weights.of("anything"), weights.lacking(["anything"])) == (1.0, ())


def test_with_weights_the_reward_is_the_weighted_sum_and_a_name_without_one_is_told() -> None:
    weights = RewardWeights({"correct": 1.0, "form": 0.1, "length": -0.5, "watched": 0.0})
    # 1 * 1 + 0.1 * 0.5 - 0.5 * 2 + 0 * 9
    assert weights.total({"correct": 1.0, "form": 0.5, "length": 2.0, "watched": 9.0}) == pytest.approx(0.05)
    assert weights.lacking(["form", "lenght", "extra", "lenght"]) == ("extra", "lenght")


def test_rewards_of_one_name_add_up(make_reward_record: MakeReward) -> None:
    rewards = [make_reward_record(name=name, value=value) for name, value in (("a", 0.5), ("b", 1.0), ("a", 0.25))]
    assert components_of(rewards) == {"a": 0.75, "b": 1.0}


def test_transitions_keep_the_components_and_carry_the_weighted_rewards(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    answers = tuple(Choice(i, (7,), (-0.5,), "stop", {}) for i in range(2))
    calls = [make_call(1, choices=answers, state="hall", score=0.5), make_call(2)]
    rewards = [
        make_reward_record(name="correct", value=1.0),
        make_reward_record(name="form", value=0.5),
        make_reward_record(name="form", value=0.25, call_id="call-1"),
        make_reward_record(name="tool", value=2.0, call_id="call-1"),
    ]
    weights = RewardWeights({"correct": 2.0, "form": 0.1, "tool": 0.5})
    first, other_choice, second = extract(make_rollout_record(), calls, rewards, weights=weights).transitions
    # The rollout: 2 * 1 + 0.1 * 0.5. The call: 0.1 * 0.25 + 0.5 * 2, carried by its first choice alone.
    assert [t.rollout_reward for t in (first, other_choice, second)] == [pytest.approx(2.05)] * 3
    assert [t.rollout_components for t in (first, other_choice, second)] == [{"correct": 1.0, "form": 0.5}] * 3
    assert first.reward == pytest.approx(1.025)
    assert first.components == {"form": 0.25, "tool": 2.0}
    assert (other_choice.reward, other_choice.components) == (None, {})
    assert (second.reward, second.components) == (None, {})
    assert [(t.state, t.score) for t in (first, other_choice, second)] == [("hall", 0.5), ("hall", 0.5), (None, None)]


def test_a_rollout_with_a_reward_that_lacks_a_weight_is_not_trained_on(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    rewards = [make_reward_record(name="correct"), make_reward_record(name="froM", value=0.5)]
    found = extract(make_rollout_record(), [make_call(1)], rewards, weights=RewardWeights({"correct": 1.0}))
    assert found.transitions == ()
    (entry,) = found.entries
    assert (entry.reason, entry.detail) == (Reason.NO_REWARD, "rewards.weights has no weight for 'froM'")


def test_the_return_of_a_result_is_weighted(make_rollout_record: MakeRollout, make_reward_record: MakeReward) -> None:
    job = RolloutJob("rollout-0", 0, "group-0", Task("task-0", {}), "train", 1)
    rewards = (
        make_reward_record(name="correct", value=1.0),
        make_reward_record(name="form", value=0.5, call_id="call-1"),
    )
    result = RolloutResult(job, make_rollout_record(), None, rewards, RewardWeights({"correct": 1.0, "form": 0.5}))
    assert result.reward == 1.25
    assert RolloutResult(job, make_rollout_record(), None, rewards).reward == 1.5
    assert RolloutResult(job, make_rollout_record(), None, ()).reward is None


def test_judges_refuse_names_that_lack_a_weight_and_say_what_to_do() -> None:
    judges = Judges(weights=RewardWeights({"correct": 1.0}))
    judges.check_names(["correct"])
    with pytest.raises(RewardError, match="no weight for the reward 'froM'") as caught:
        judges.check_names(["correct", "froM"])
    assert "0 records it without counting it" in caught.value.cure
