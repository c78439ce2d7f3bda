"""Rewards that statistics cannot be made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from spangrad.errors import RewardError
from spangrad.lightningrl import (
    GRPO,
    RLOO,
    AdvantageEstimator,
    Discounted,
    DrGRPO,
    Identical,
    LightningRL,
    ReinforcePlusPlusBaseline,
)
from spangrad.transitions import TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
ESTIMATORS = [GRPO(), RLOO(), DrGRPO(), ReinforcePlusPlusBaseline()]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reward", [1e31, -1e31, 1.7e308])
def test_a_reward_that_is_too_large_is_named_with_its_rollout(
    make_transition_batch: MakeBatch, estimator: AdvantageEstimator, reward: float
) -> None:
    batch = make_transition_batch([("a", 1, [2]), ("a", reward, [2])])
    guilty = batch.transitions[1].rollout_id

    with pytest.raises(RewardError) as caught, np.errstate(all="raise"):
        LightningRL(Discounted(), estimator).compute(batch)

    assert caught.value.what == f"The reward {reward:g} of rollout {guilty} is too large to be compared with others"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_largest_reward_overflows_nothing(make_transition_batch: MakeBatch, estimator: AdvantageEstimator) -> None:
    batch = make_transition_batch([("a", 1e30, [2]), ("a", -1e30, [2, 3]), ("a", 1e30, [1])])

    with np.errstate(over="raise", invalid="raise"):
        report = LightningRL(Identical(), estimator).compute(batch)

    assert np.isfinite(report.advantages.astype(np.float32)).all()
    assert np.sign(report.advantages).tolist() == [1, -1, -1, 1]
