"""Credit for the last call, for agents by share, and sums of assigners, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import pytest

from spangrad.errors import ConfigError
from spangrad.lightningrl import (
    GRPO,
    AgentShare,
    CreditNeeds,
    DrGRPO,
    GiGPO,
    Identical,
    LastCall,
    LightningRL,
    Progress,
    ReturnToGo,
    Sum,
    credit_warnings,
    needs_of,
)
from spangrad.transitions import Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
AGENTS = {(0, 0): "writer", (0, 1): "reviewer", (1, 0): "writer", (1, 1): "reviewer"}


def test_only_the_last_call_is_compared(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1, 1]), ("a", 0.0, [1])])
    report = LightningRL(LastCall(), DrGRPO()).compute(batch)
    assert report.advantages.tolist() == [0, 0, 0.5, -0.5]
    assert report.reasons == (Reason.NO_CREDIT, Reason.NO_CREDIT, Reason.TRAINED, Reason.TRAINED)
    assert (report.metrics["groups"], report.metrics["singleton_groups"]) == (1, 0)
    assert report.warnings == ()


def test_all_calls_of_the_last_step_are_last_and_have_their_own_rewards(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1, 1]), ("a", 0.0, [1])],
        depths={(0, 0): 0, (0, 1): 1, (0, 2): 1},
        call_rewards={(0, 1): 0.25, (0, 2): -0.25},
    )
    (comparison,) = LastCall().comparisons(batch)
    assert comparison.compared.tolist() == [False, True, True, True]
    # the first rollout brings (1.25 + 0.75) / 2 into the mean
    assert DrGRPO().advantages((comparison,)).tolist() == [0, 0.75, 0.25, -0.5]


def test_rewards_of_earlier_calls_are_said_to_be_unused(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 0.0, [1, 1, 1]), ("a", 0.0, [1])], call_rewards={(0, 0): 0.5, (0, 2): 1.0})
    report = LightningRL(LastCall(), DrGRPO()).compute(batch)
    (warning,) = report.warnings
    assert warning == (
        "Rewards of calls are unused (0.5): the credit assigner last_call makes nothing of them; "
        "return_to_go or turn_rewards would"
    )
    assert LightningRL(Identical(), DrGRPO()).compute(batch).warnings == ()


def test_many_unused_rewards_are_not_all_listed(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 0.0, [1] * 8)], call_rewards={(0, call): float(call) for call in range(7)})
    (warning,) = credit_warnings(LastCall(), batch, name="last_call")
    assert warning.startswith("Rewards of calls are unused (1, 2, 3, 4, 5, ...):")


def test_an_agents_share_weighs_its_advantage_whatever_the_estimator(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])], agents=AGENTS)
    credit = AgentShare({"writer": 1.0, "reviewer": 0.25})
    assert DrGRPO().advantages(credit.comparisons(batch)).tolist() == [0.5, 0.125, -0.5, -0.125]
    one = 1 / sqrt(2)
    expected = [one, one / 4, -one, -one / 4]
    assert GRPO(eps=1e-12).advantages(credit.comparisons(batch)) == pytest.approx(expected)


def test_a_share_of_zero_leaves_the_calls_untrained_but_in_the_mean(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])], agents=AGENTS)
    report = LightningRL(AgentShare({"writer": 2.0, "reviewer": 0}), DrGRPO()).compute(batch)
    assert report.advantages.tolist() == [1.0, 0, -1.0, 0]
    assert report.reasons == (Reason.TRAINED, Reason.NO_CREDIT) * 2


def test_an_agent_without_a_share_is_an_error(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1])], agents={(0, 0): "writer", (0, 1): "critic"})
    with pytest.raises(ConfigError, match=r"No share for the agent 'critic' \(shares: writer\)"):
        AgentShare({"writer": 1.0}).comparisons(batch)
    unnamed = make_transition_batch([("a", 1.0, [1])])
    with pytest.raises(ConfigError, match="A call is of no known agent, so it has no share"):
        AgentShare({"writer": 1.0}).comparisons(unnamed)


def test_a_share_of_an_agent_that_made_no_call_is_warned_about(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1]), ("a", 0.0, [1])], agents={(0, 0): "writer", (1, 0): "writer"})
    report = LightningRL(AgentShare({"writer": 1.0, "riter": 1.0}), DrGRPO()).compute(batch)
    assert report.warnings == ("No call is of the agent 'riter', which has a share",)


@pytest.mark.parametrize(
    ("shares", "wrong"),
    [
        ({}, "shares is {}"),
        (1.0, "shares is 1.0"),
        ({"writer": -1}, "The share of the agent 'writer' is -1"),
        ({"writer": "all"}, "The share of the agent 'writer' is 'all'"),
        ({"writer": float("nan")}, "The share of the agent 'writer' is nan"),
        ({"writer": 0}, "All shares are 0"),
    ],
)
def test_wrong_shares_are_refused(shares: Mapping[str, float], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        AgentShare(shares)


def test_a_sum_adds_the_advantages_of_its_parts_by_their_weights(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 0.0, [1])], call_rewards={(0, 0): 0.5})
    credit = Sum([(ReturnToGo(), 1.0), (LastCall(), 0.5)])
    # return to go: 1.5, 1 and 0 around 0.75; last call: nothing, and 1 and 0 around 0.5, halved
    report = LightningRL(credit, DrGRPO()).compute(batch)
    assert report.advantages.tolist() == [0.75, 0.5, -1.0]
    assert report.returns.tolist() == [1.5, 1.0, 0.0]
    # what one part leaves unused, the other uses
    assert report.warnings == ()
    (warning,) = LightningRL(Sum([(LastCall(), 1.0), (LastCall(), 1.0)]), DrGRPO()).compute(batch).warnings
    assert warning.startswith("Rewards of calls are unused (0.5): the credit assigner sum")


def test_a_sum_in_a_sum_multiplies_the_weights(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1]), ("a", 0.0, [1])])
    nested = Sum([(Sum([(GiGPO(omega=4.0), 0.5)]), 0.25)])
    assert [comparison.weight for comparison in nested.comparisons(batch)] == [0.125, 0.5]


def test_a_sum_says_what_its_parts_say(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1])], agents={(0, 0): "writer"})
    credit = Sum([(Identical(), 1.0), (AgentShare({"writer": 1.0, "editor": 1.0}), 1.0)])
    assert credit_warnings(credit, batch, name="sum") == ("No call is of the agent 'editor', which has a share",)


def test_what_an_assigner_needs_is_declared() -> None:
    assert needs_of(Identical()) == CreditNeeds()
    assert needs_of(GiGPO) == CreditNeeds(states=True, own_groups=True)
    together = Sum([(Progress(), 1.0), (GiGPO(), 1.0), (AgentShare({"a": 1}), 1.0)])
    assert needs_of(together) == CreditNeeds(states=True, scores=True, agents=True, own_groups=True, losses=True)
    assert needs_of(Sum([(Identical(), 1.0)])) == CreditNeeds()


@pytest.mark.parametrize("weight", [0, -0.5, float("nan"), "1", None])
def test_a_sum_of_nothing_or_with_a_weight_that_is_none_is_refused(weight: object) -> None:
    with pytest.raises(ConfigError, match="A sum of no credit assigners"):
        Sum([])
    with pytest.raises(ConfigError, match="weight is"):
        Sum([(Identical(), weight)])  # type: ignore[list-item]  # what a configuration may hold
