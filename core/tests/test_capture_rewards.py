"""What counts as a reward, and what a rollout does with it."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from spangrad.capture import RewardList, Rollout, RolloutScope, reward_value
from spangrad.errors import RewardError


def make_rollout(rewards: RewardList | None) -> Rollout:
    return Rollout(RolloutScope("r1", 1, "t1", "http://127.0.0.1:1/v1", "key", reward_sink=rewards))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1.0),
        (-0.25, -0.25),
        (True, 1.0),
        (False, 0.0),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
    ],
)
def test_every_finite_real_number_is_a_reward(given: object, expected: float) -> None:
    value = reward_value(given)
    assert value == expected
    assert type(value) is float


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "None"),
        ("1.0", "str '1.0'"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float64("nan"), "nan"),
        (10**400, "inf"),
        (1 + 2j, "complex"),
        ([1.0], r"list \[1.0\]"),
        (np.array([1.0]), "ndarray"),
        (Decimal(1), "Decimal"),
    ],
)
def test_anything_else_is_refused_and_shown(given: object, shown: str) -> None:
    with pytest.raises(RewardError, match=f"The reward is {shown}"):
        reward_value(given)


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(RewardError) as caught:
        reward_value("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_rewards_of_a_rollout_keep_their_name_and_call() -> None:
    rewards = RewardList("r1")
    rollout = make_rollout(rewards)
    rollout.reward(True)
    rollout.reward(0.1, "format")
    rollout.reward(-1, call_id="c7")
    assert [(r.value, r.name, r.call_id) for r in rewards.close()] == [
        (1.0, "reward", None),
        (0.1, "format", None),
        (-1.0, "reward", "c7"),
    ]


def test_only_rewards_without_a_call_reward_the_rollout() -> None:
    rewards = RewardList("r1")
    rollout = make_rollout(rewards)
    rollout.reward(1.0, call_id="c1")
    assert not rewards.rewards_rollout
    rollout.reward(0.0)
    assert rewards.rewards_rollout


def test_a_reward_after_the_end_is_refused() -> None:
    rewards = RewardList("r1")
    rewards.close()
    with pytest.raises(RewardError, match="r1 has ended"):
        make_rollout(rewards).reward(1.0)


def test_a_refused_reward_names_the_rollout() -> None:
    with pytest.raises(RewardError, match="'score' of rollout r1 is None"):
        make_rollout(RewardList("r1")).reward(None, "score")


def test_a_command_cannot_reward_itself_and_is_told_what_to_do() -> None:
    with pytest.raises(RewardError, match="last line of output"):
        make_rollout(None).reward(1.0)
