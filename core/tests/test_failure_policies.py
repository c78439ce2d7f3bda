"""What is done about a rollout that failed: every kind with every policy, and what a train.toml may say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spangrad.capture import is_infrastructure
from spangrad.errors import InfrastructureError
from spangrad.training._failures_config import FailuresTable
from spangrad.transitions import (
    FAILURE_SOURCE,
    Done,
    FailureKind,
    FailurePolicies,
    FailurePolicy,
    Fate,
    Handling,
    LedgerEntry,
    Reason,
    RewardRecord,
    RewardWeights,
    RolloutRecord,
    RolloutStatus,
    Treatment,
    extract,
    handling,
    kind_of,
)

MakeRollout = Callable[..., RolloutRecord]
MakeReward = Callable[..., RewardRecord]

STATUSES = {
    FailureKind.FAILED: RolloutStatus.FAILED,
    FailureKind.TIMED_OUT: RolloutStatus.TIMED_OUT,
    FailureKind.INFRASTRUCTURE: RolloutStatus.INFRASTRUCTURE,
    FailureKind.EMPTY: RolloutStatus.NO_CALL,
    FailureKind.UNREWARDED: RolloutStatus.NO_REWARD,
}
PENALTY = {"source": FAILURE_SOURCE, "name": "failure", "value": -1.0}
ON_ITS_WAY = {"source": "scope", "name": "way", "value": 0.25}
BY_A_RULE = {"source": "rule tool_ok", "name": "tool_ok", "value": 0.5}
FOR_ITS_LENGTH = {"source": "length", "name": "overlong", "value": 0.0}


@pytest.fixture
def make_records(
    make_rollout_record: MakeRollout, make_reward_record: MakeReward
) -> Callable[..., tuple[RolloutRecord, list[RewardRecord]]]:
    """Makes a second attempt that ended like this, and its rewards."""

    def make(status: RolloutStatus, rewards: list[dict[str, Any]]) -> tuple[RolloutRecord, list[RewardRecord]]:
        rollout = make_rollout_record(status=status, attempt=2, error="the cause")
        return rollout, [make_reward_record(attempt=2, **fields) for fields in rewards]

    return make


def test_every_status_that_is_an_end_is_a_success_or_a_kind_of_failure() -> None:
    found = {status: kind_of(status) for status in RolloutStatus}

    assert {status for status, kind in found.items() if kind is None} == {
        RolloutStatus.RUNNING,
        RolloutStatus.SUCCEEDED,
    }
    assert set(found.values()) - {None} == set(FailureKind)
    assert found[RolloutStatus.LOST] is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize("kind", FailureKind)
@pytest.mark.parametrize(
    ("treatment", "rewards", "expected"),
    [
        (Treatment.DROP, [ON_ITS_WAY], (Done.DROPPED, "")),
        (Treatment.RETRY, [ON_ITS_WAY], (Done.DROPPED, "given up after attempt 2: ")),
        (Treatment.PENALISE, [ON_ITS_WAY, PENALTY], (Done.PENALISED, "penalised: ")),
        (Treatment.PENALISE, [ON_ITS_WAY], (Done.DROPPED, "")),  # the policy came later than the rollout
        (Treatment.KEEP, [ON_ITS_WAY], (Done.KEPT, "kept with what it was given on its way: ")),
        (Treatment.KEEP, [], (Done.DROPPED, "not kept, since it was given nothing on its way: ")),
        (
            Treatment.KEEP,
            [BY_A_RULE, FOR_ITS_LENGTH],
            (Done.DROPPED, "not kept, since it was given nothing on its way: "),
        ),
    ],
)
def test_each_kind_is_treated_as_declared_and_says_so(
    make_records: Callable[..., tuple[RolloutRecord, list[RewardRecord]]],
    kind: FailureKind,
    treatment: Treatment,
    rewards: list[dict[str, Any]],
    expected: tuple[Done, str],
) -> None:
    done, words = expected
    rollout, own = make_records(STATUSES[kind], rewards)

    found = handling(rollout, own, {kind: treatment})

    assert found is not None
    assert (found.kind, found.done) == (kind, done)
    assert found.words.startswith(words)
    assert found.words.endswith(": the cause")


def test_a_penalised_rollout_is_trained_on_with_its_penalty_and_what_it_was_given(
    make_rollout_record: MakeRollout, make_reward_record: MakeReward, make_call: Callable[..., Any]
) -> None:
    rollout = make_rollout_record(status=RolloutStatus.FAILED, error="KeyError")
    rewards = [
        make_reward_record(**PENALTY),
        make_reward_record(**ON_ITS_WAY),
        make_reward_record(value=7.0, attempt=1),
    ]
    treatments = {FailureKind.FAILED: Treatment.PENALISE}

    extraction = extract(rollout, [make_call(1)], rewards, treatments=treatments)

    (transition,) = extraction.transitions
    assert transition.rollout_reward == -0.75  # -1 + 0.25; the 7 is of another attempt
    assert extraction.entries == ()
    row = LedgerEntry("call-1", 0, "rollout-0", 0, 1, Fate.DROPPED, Reason.ZERO_VARIANCE, "all the same")
    assert extraction.annotated(row).detail == "penalised: the agent failed: KeyError; all the same"


def test_a_kept_rollout_whose_rewards_lack_a_weight_is_dropped_all_the_same(
    make_rollout_record: MakeRollout, make_reward_record: MakeReward, make_call: Callable[..., Any]
) -> None:
    extraction = extract(
        make_rollout_record(status=RolloutStatus.TIMED_OUT),
        [make_call(1)],
        [make_reward_record(**ON_ITS_WAY)],
        weights=RewardWeights({"correct": 1.0}),
        treatments={FailureKind.TIMED_OUT: Treatment.KEEP},
    )

    assert extraction.handling is not None
    assert extraction.handling.done is Done.DROPPED
    assert [(entry.reason, entry.detail) for entry in extraction.entries] == [
        (Reason.NO_REWARD, "rewards.weights has no weight for 'way'")
    ]


def test_nothing_is_done_about_failures_while_measuring(
    make_rollout_record: MakeRollout, make_reward_record: MakeReward, make_call: Callable[..., Any]
) -> None:
    rollout = make_rollout_record(status=RolloutStatus.FAILED, phase="evaluate")
    keep = {FailureKind.FAILED: Treatment.KEEP}

    extraction = extract(rollout, [make_call(1)], [make_reward_record(**ON_ITS_WAY)], treatments=keep)

    assert extraction.handling is None
    assert [entry.reason for entry in extraction.entries] == [Reason.EVALUATION]
    penalise = FailurePolicies({FailureKind.FAILED: FailurePolicy(Treatment.PENALISE, reward=-1.0)})
    assert penalise.penalty(rollout, 0.0) is None


def test_a_rollout_that_was_cut_short_is_not_penalised_since_it_will_be_run_again(
    make_rollout_record: MakeRollout,
) -> None:
    policies = FailurePolicies({FailureKind.INFRASTRUCTURE: FailurePolicy(Treatment.PENALISE, reward=-1.0)})

    assert policies.penalty(make_rollout_record(status=RolloutStatus.LOST), 0.0) is None
    penalty = policies.penalty(make_rollout_record(status=RolloutStatus.INFRASTRUCTURE), 5.0)
    assert penalty is not None
    assert (penalty.name, penalty.value, penalty.source, penalty.call_id) == ("failure", -1.0, "failure policy", None)


@pytest.mark.parametrize("treatment", Treatment)
def test_a_rollout_that_was_lost_is_dropped_whatever_the_policy_and_whatever_it_was_given(
    make_rollout_record: MakeRollout, make_reward_record: Callable[..., RewardRecord], treatment: Treatment
) -> None:
    lost = make_rollout_record(status=RolloutStatus.LOST, attempt=2, error="it went away")

    done = handling(lost, [make_reward_record(attempt=2)], {FailureKind.INFRASTRUCTURE: treatment})

    assert done == Handling(
        FailureKind.INFRASTRUCTURE, Done.DROPPED, "the process that ran the rollout went away: it went away"
    )


@given(
    status=st.sampled_from(RolloutStatus),
    kind=st.sampled_from(FailureKind),
    tries=st.integers(1, 6),
    attempts=st.integers(2, 5),
    measured=st.booleans(),
    lost=st.integers(0, 3),
)
def test_a_rollout_is_tried_again_as_long_as_its_kind_has_attempts_left(
    *, status: RolloutStatus, kind: FailureKind, tries: int, attempts: int, measured: bool, lost: int
) -> None:
    """Attempts that were lost with their process do not count."""
    number = tries + lost
    record = RolloutRecord("r", number, "t", "g", "evaluate" if measured else "train", 1, status, "", "", 0.0, None)
    policies = FailurePolicies({kind: FailurePolicy(Treatment.RETRY, attempts=attempts)})

    expected = kind_of(status) is kind and tries < attempts and (not measured or kind is FailureKind.INFRASTRUCTURE)
    assert policies.retries(record, lost=lost) is expected


def test_what_an_agent_raises_is_infrastructure_if_it_or_its_stated_cause_is() -> None:
    down = InfrastructureError("the database is down")
    caused = ValueError("no rows")
    caused.__cause__ = down
    met_while_handling = ValueError("a bug in the handler")
    met_while_handling.__context__ = down
    ring = ValueError()
    ring.__cause__ = ring

    assert is_infrastructure(down)
    assert is_infrastructure(caused)
    assert is_infrastructure(ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [caused])]))
    assert not is_infrastructure(met_while_handling)
    assert not is_infrastructure(ring)
    assert not is_infrastructure(None)


def test_a_table_says_what_is_done_about_each_kind() -> None:
    table = FailuresTable.model_validate(
        {
            "failed": {"policy": "penalise", "reward": -1.0},
            "timed_out": "keep",
            "infrastructure": {"policy": "retry", "attempts": 3},
        }
    )

    policies = table.policies().by_kind
    assert policies[FailureKind.FAILED] == FailurePolicy(Treatment.PENALISE, reward=-1.0)
    assert policies[FailureKind.TIMED_OUT] == FailurePolicy(Treatment.KEEP)
    assert policies[FailureKind.INFRASTRUCTURE] == FailurePolicy(Treatment.RETRY, attempts=3)
    assert policies[FailureKind.EMPTY] == policies[FailureKind.UNREWARDED] == FailurePolicy()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"failed": "penalise"}, "'penalise' needs reward"),
        ({"failed": "retry"}, "'retry' needs attempts"),
        ({"failed": {"policy": "retry", "attempts": 1}}, "greater than or equal to 2"),
        ({"failed": {"policy": "keep", "reward": 1.0}}, "'keep' does not use reward; it would do nothing"),
        ({"failed": {"policy": "drop", "attempts": 2}}, "'drop' does not use attempts; it would do nothing"),
        ({"failed": {"policy": "penalise", "reward": float("nan")}}, "finite"),
        ({"failed": "ignore"}, "'drop', 'retry', 'penalise' or 'keep'"),
        ({"empty": {"policy": "penalise", "reward": -1.0}}, "there is no token to train on"),
        ({"empty": "keep"}, "there is no token to train on"),
        ({"refill_limit": 2}, 'would do nothing without groups = "refill"'),
        ({"groups": "refill", "refill_limit": 0}, "greater than or equal to 1"),
        ({"crashed": "drop"}, "Extra inputs"),
    ],
)
def test_tables_that_cannot_be_are_refused(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        FailuresTable.model_validate(table)
