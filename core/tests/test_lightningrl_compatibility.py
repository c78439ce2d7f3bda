"""Which assigners, estimators, groupings and backends go together, and what each estimator needs, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl import (
    GDPO,
    GRPO,
    RAE,
    RLOO,
    AdvantageEstimator,
    Comparison,
    DrGRPO,
    GiGPO,
    Grouping,
    Identical,
    LightningRL,
    MaxRL,
    Progress,
    ReinforcePlusPlus,
    Requirements,
    Sum,
    Weighting,
    builtin_estimators,
    requirements_table,
)
from spangrad.transitions import FloatArray


@dataclass(frozen=True)
class Fixed:
    """A plug-in's estimator that has to be given an option."""

    values: list[float]
    requirements: ClassVar[Requirements] = Requirements()

    def advantages(self, _comparisons: Sequence[Comparison]) -> FloatArray:
        return np.array(self.values)


class PerAgent(Fixed):
    """One whose name in a train.toml is another than its class."""

    requirements: ClassVar[Requirements] = Requirements(among="agent")


def test_a_configuration_the_estimator_cannot_learn_from_is_refused() -> None:
    algorithm = LightningRL(Identical(), RLOO(), Weighting("token"))
    algorithm.check(rollouts_per_task=2)
    with pytest.raises(ConfigError, match="rloo compares rollouts of one task and needs at least 2, but"):
        algorithm.check(rollouts_per_task=1)
    with pytest.raises(
        ConfigError, match="rloo gives one advantage per transition, but the backend takes them per token"
    ):
        algorithm.check(rollouts_per_task=8, estimator_levels={"token"})


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (
            LightningRL(Identical(), RAE(), grouping=Grouping(per_agent=True)),
            "rae keeps each agent's calls apart anyway: per_agent = true would do nothing",
        ),
        (
            LightningRL(Identical(), RLOO(), grouping=Grouping(statistics="call")),
            'with statistics = "call" the rest of its own calls would be among them',
        ),
        (
            LightningRL(Progress(), GDPO()),
            "gdpo asks the credit assigner once for each reward, and progress would count the states' scores as many times",
        ),
        (
            LightningRL(GiGPO(), RAE()),
            "gigpo compares calls made in the same state, but rae would compare them with all",
        ),
        (
            LightningRL(Sum([(Identical(), 1.0), (GiGPO(), 1.0)]), RAE()),
            "gigpo, a part of sum, compares calls made in the same state, but rae would compare them with all",
        ),
        (
            LightningRL(Progress(), MaxRL()),
            "progress takes off for steps back, and maxrl cannot take a return below 0",
        ),
        (
            LightningRL(Identical(), PerAgent([]), Weighting(), Grouping(per_agent=True), names=("identical", "mine")),
            "mine keeps each agent's calls apart anyway",
        ),
    ],
    ids=["rae per agent", "rloo over calls", "gdpo of scores", "rae of states", "a part", "maxrl", "a name of its own"],
)
def test_settings_that_do_not_go_together_are_refused(algorithm: LightningRL, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        algorithm.check(rollouts_per_task=8)


@pytest.mark.parametrize("estimator", [GRPO(), DrGRPO(), MaxRL(), GDPO(), ReinforcePlusPlus()])
def test_agents_and_calls_may_be_the_unit_of_the_others(estimator: AdvantageEstimator) -> None:
    LightningRL(Identical(), estimator, grouping=Grouping(True, "call")).check(rollouts_per_task=8)


def test_an_estimator_that_declares_a_memory_it_has_not_is_named() -> None:
    @dataclass(frozen=True)
    class Forgetful(Fixed):
        requirements: ClassVar[Requirements] = Requirements(memory=True)

    with pytest.raises(
        PluginError, match="The advantage estimator Forgetful declares memory = True, and its methods say"
    ):
        LightningRL(Identical(), Forgetful([1.0])).check(rollouts_per_task=8)


def test_what_each_estimator_needs_is_told_in_words() -> None:
    table = requirements_table()
    assert list(table) == sorted(builtin_estimators())
    assert table["grpo"] == ("at least 2 rollouts of one task", "a backend that takes one advantage per transition")
    assert table["reinforce_pp"][0] == "at least 2 rollouts in a step"
    assert "rewards by name" in table["gdpo"]
    assert "a baseline kept from step to step" in table["rae"]
    assert 'statistics = "rollout"' in table["rloo"]


def test_an_estimator_that_must_have_options_is_in_the_table_too() -> None:
    assert requirements_table({"fixed": Fixed, "grpo": GRPO}) == {
        "fixed": ("known once its options are given",),
        "grpo": requirements_table()["grpo"],
    }
