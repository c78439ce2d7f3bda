"""From calls, rewards and spans to transitions, and a ledger row with the reason for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spangrad import semconv
from spangrad.errors import RewardError
from spangrad.spans import Span
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions import Call, CallStatus, Choice, Extraction, Fate, Reason, extract, fate_of

MakeRollout = Callable[..., RolloutRecord]
MakeReward = Callable[..., RewardRecord]
MakeCall = Callable[..., Call]


def choice(index: int = 0, ids: tuple[int, ...] | None = (7, 8), logprobs: tuple[float, ...] | None = None) -> Choice:
    if logprobs is None and ids is not None:
        logprobs = (-0.5,) * len(ids)
    return Choice(index, ids, logprobs, "stop", {"role": "assistant", "content": "answer"})


def span(span_id: str, parent_id: str | None = None, **attributes: Any) -> Span:
    return Span(
        trace_id="t" * 32,
        span_id=span_id,
        parent_id=parent_id,
        rollout_id="rollout-0",
        attempt=0,
        name=span_id,
        kind="client",
        start_ns=0,
        end_ns=1,
        status="ok",
        status_message="",
        attributes={name.replace("__", "."): value for name, value in attributes.items()},
        events=(),
        scope="test",
    )


def llm_span(call_id: str, *, span_id: str | None = None, parent_id: str | None = None, **attributes: Any) -> Span:
    return span(
        span_id or f"llm-{call_id}",
        parent_id,
        **{semconv.OPERATION_NAME: "chat", semconv.CALL_ID: call_id, **attributes},
    )


def reasons(extraction: Extraction) -> dict[str, Reason]:
    """What became of each call: the ledger's reason, or trained for a transition."""
    found = {entry.call_id: entry.reason for entry in extraction.entries}
    return found | {transition.call_id: Reason.TRAINED for transition in extraction.transitions}


def test_a_call_becomes_a_transition_with_the_engines_own_tokens(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    call = make_call(1, agent="solver", temperature=0.7, top_p=0.9, top_k=40)
    extraction = extract(make_rollout_record(), [call], [make_reward_record(value=0.75)])
    (found,) = extraction.transitions
    assert extraction.entries == ()
    assert (found.rollout_id, found.attempt, found.group_id, found.call_id) == ("rollout-0", 0, "group-0", "call-1")
    assert (found.choice, found.index, found.depth, found.agent) == (0, 0, 0, "solver")
    assert (found.policy, found.policy_version) == ("policy", 4)
    assert (found.prompt_ids, found.action_ids, found.logprobs) == ((1, 2, 3), (7, 8), (-0.5, -0.25))
    assert (found.temperature, found.top_p, found.top_k) == (0.7, 0.9, 40)
    assert (found.reward, found.rollout_reward) == (None, 0.75)


def test_transitions_are_in_the_order_the_calls_were_received_whatever_order_they_come_in(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(3), make_call(1), make_call(2)]
    found = extract(make_rollout_record(), calls, [make_reward_record()]).transitions
    assert [(t.call_id, t.index, t.depth) for t in found] == [("call-1", 0, 0), ("call-2", 1, 1), ("call-3", 2, 2)]


def test_calls_made_side_by_side_share_a_depth(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [
        make_call(1),
        make_call(2, finished_at=109.0),
        make_call(3, finished_at=108.0),
        make_call(10),
    ]
    found = extract(make_rollout_record(), calls, [make_reward_record()]).transitions
    assert [t.depth for t in found] == [0, 1, 1, 2]


def test_each_choice_of_a_call_is_a_transition_of_the_same_depth_and_the_first_carries_the_calls_reward(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    call = make_call(1, choices=(choice(0), choice(1, ids=(9,)), choice(2, ids=())))
    rewards = [make_reward_record(), make_reward_record(call_id="call-1", value=0.5)]
    extraction = extract(make_rollout_record(), [call, make_call(2)], rewards)
    assert [(t.choice, t.index, t.depth, t.action_ids, t.reward) for t in extraction.transitions] == [
        (0, 0, 0, (7, 8), 0.5),
        (1, 1, 0, (9,), None),
        (0, 2, 1, (7, 8), None),
    ]
    (empty,) = extraction.entries
    assert (empty.call_id, empty.choice, empty.reason) == ("call-1", 2, Reason.EMPTY_ACTION)


def test_components_sum_and_call_rewards_attach_by_call_id(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    rewards = [
        make_reward_record(name="right", value=0.9),
        make_reward_record(name="format", value=0.1),
        make_reward_record(call_id="call-2", value=0.25),
        make_reward_record(call_id="call-2", value=-1.0),
        make_reward_record(attempt=1, value=100.0),
    ]
    first, second = extract(make_rollout_record(), [make_call(1), make_call(2)], rewards).transitions
    assert (first.rollout_reward, second.rollout_reward) == (1.0, 1.0)
    assert (first.reward, second.reward) == (None, -0.75)


def test_a_reward_for_a_call_that_gave_no_transition_is_reported_and_counts_for_nothing(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    unknown = make_reward_record(call_id="no-such-call", value=5.0)
    failed = make_reward_record(call_id="call-2", value=7.0)
    calls = [make_call(1), make_call(2, status=CallStatus.ERROR, reason="HTTP 500", choices=())]
    extraction = extract(make_rollout_record(), calls, [make_reward_record(), unknown, failed])
    assert extraction.unmatched_rewards == (unknown, failed)
    assert extraction.transitions[0].rollout_reward == 1.0
    assert extraction.entries[0].reward == 7.0


def test_call_rewards_alone_are_rewards_enough(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    (found,) = extract(make_rollout_record(), [make_call(1)], [make_reward_record(call_id="call-1")]).transitions
    assert (found.reward, found.rollout_reward) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rollout_id": None}, (Reason.ORPHAN, "named no rollout")),
        ({"attempt": 2}, (Reason.OTHER_ATTEMPT, "made by attempt 2, not 0")),
        ({"status": CallStatus.ERROR, "reason": "HTTP 500", "choices": ()}, (Reason.CALL_FAILED, "HTTP 500")),
        ({"status": CallStatus.UNDELIVERED, "reason": "stream closed"}, (Reason.UNDELIVERED, "stream closed")),
        ({"policy": None, "policy_version": None}, (Reason.NOT_TRAINED_POLICY, "'agent-model' is served by engine")),
        ({"policy_version": None}, (Reason.NOT_TRAINED_POLICY, "did not say which version")),
        ({"prompt_ids": None}, (Reason.NO_TOKEN_IDS, "engine did not say the prompt token ids")),
        ({"prompt_ids": ()}, (Reason.NO_TOKEN_IDS, "engine did not say the prompt token ids")),
        ({"choices": (choice(ids=None),)}, (Reason.NO_TOKEN_IDS, "engine did not say the sampled token ids")),
        ({"choices": ()}, (Reason.NO_TOKEN_IDS, "engine did not say the sampled token ids")),
        ({"choices": (choice(ids=()),)}, (Reason.EMPTY_ACTION, "no token")),
        ({"choices": (Choice(0, (7,), None, "stop", {}),)}, (Reason.NO_LOGPROBS, "engine gave no log-prob")),
        ({"choices": (choice(logprobs=(-1.0,)),)}, (Reason.NO_LOGPROBS, "gave 1 log-probabilities for 2 ids")),
        ({"choices": (choice(logprobs=(-1.0, float("nan"))),)}, (Reason.NO_LOGPROBS, "not a finite number")),
        ({"choices": (choice(logprobs=(-1.0, float("-inf"))),)}, (Reason.NO_LOGPROBS, "not a finite number")),
    ],
)
def test_a_call_that_is_no_transition_is_in_the_ledger_with_the_reason(
    make_rollout_record: MakeRollout,
    make_call: MakeCall,
    make_reward_record: MakeReward,
    fields: dict[str, Any],
    expected: tuple[Reason, str],
) -> None:
    reason, detail = expected
    extraction = extract(make_rollout_record(), [make_call(1, **fields), make_call(2)], [make_reward_record()])
    (entry,) = extraction.entries
    assert (entry.call_id, entry.reason, entry.fate) == ("call-1", reason, fate_of(reason))
    assert detail in entry.detail
    assert (entry.rollout_id, entry.step) == (fields.get("rollout_id", "rollout-0"), 1)
    assert [(t.call_id, t.index) for t in extraction.transitions] == [("call-2", 0)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"status": RolloutStatus.FAILED, "error": "ValueError: no"},
            (Reason.ROLLOUT_FAILED, "failed: ValueError: no"),
        ),
        ({"status": RolloutStatus.TIMED_OUT}, (Reason.ROLLOUT_FAILED, "time limit")),
        ({"status": RolloutStatus.LOST}, (Reason.ROLLOUT_FAILED, "went away")),
        ({"status": RolloutStatus.NO_CALL}, (Reason.ROLLOUT_FAILED, "no call")),
        ({"status": RolloutStatus.RUNNING}, (Reason.ROLLOUT_UNFINISHED, "still running")),
        ({"status": RolloutStatus.NO_REWARD}, (Reason.NO_REWARD, "usable reward")),
        ({"phase": "evaluate"}, (Reason.EVALUATION, "measuring")),
    ],
)
def test_a_rollout_that_cannot_be_trained_drops_its_calls_with_the_reason(
    make_rollout_record: MakeRollout,
    make_call: MakeCall,
    make_reward_record: MakeReward,
    fields: dict[str, Any],
    expected: tuple[Reason, str],
) -> None:
    reason, detail = expected
    calls = [make_call(1), make_call(2, choices=(choice(ids=None),))]
    extraction = extract(make_rollout_record(**fields), calls, [make_reward_record()])
    assert extraction.transitions == ()
    first, second = extraction.entries
    assert (first.reason, first.tokens) == (reason, 2)
    assert detail in first.detail
    assert second.reason is Reason.NO_TOKEN_IDS  # a call's own fault is not hidden by its rollout's


def test_every_status_of_a_rollout_is_known_and_only_success_gives_transitions(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    trained = [
        status
        for status in RolloutStatus
        if extract(make_rollout_record(status=status), [make_call(1)], [make_reward_record()]).transitions
    ]
    assert trained == [RolloutStatus.SUCCEEDED]


def test_a_missing_reward_is_never_a_silent_zero(make_rollout_record: MakeRollout, make_call: MakeCall) -> None:
    extraction = extract(make_rollout_record(), [make_call(1)], [])
    assert reasons(extraction) == {"call-1": Reason.NO_REWARD}


def test_a_collected_rollout_gives_transitions_too(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    rollout = make_rollout_record(phase="collect", step=None)
    assert len(extract(rollout, [make_call(1)], [make_reward_record()]).transitions) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_finite_number_is_an_error(
    make_rollout_record: MakeRollout, make_reward_record: MakeReward, value: float
) -> None:
    with pytest.raises(RewardError, match=r"'style' of rollout rollout-0 is (nan|inf).*return_value"):
        extract(make_rollout_record(), [], [make_reward_record(name="style", value=value)])


def test_records_of_another_rollout_are_refused(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    with pytest.raises(ValueError, match="call of rollout other was given for rollout rollout-0"):
        extract(make_rollout_record(), [make_call(1, rollout_id="other")], [])
    with pytest.raises(ValueError, match="reward of rollout other was given for rollout rollout-0"):
        extract(make_rollout_record(), [], [make_reward_record(rollout_id="other")])


def test_of_the_attempts_with_one_request_key_only_the_last_counts(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [
        make_call(1, request_key="r", retry=0),
        make_call(2, request_key="r", retry=1, status=CallStatus.ERROR, reason="HTTP 429", choices=()),
        make_call(3, request_key="r", retry=2),
        make_call(4, request_key="other"),
    ]
    extraction = extract(make_rollout_record(), calls, [make_reward_record()])
    assert reasons(extraction) == {
        "call-1": Reason.SUPERSEDED,
        "call-2": Reason.CALL_FAILED,
        "call-3": Reason.TRAINED,
        "call-4": Reason.TRAINED,
    }
    assert extraction.entries[0].detail == "the request was repeated as call call-3"


def test_an_answer_the_client_did_not_wait_for_does_not_count_even_when_the_repetition_failed(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [
        make_call(1, request_key="r", retry=0),
        make_call(2, request_key="r", retry=1, status=CallStatus.ERROR, reason="HTTP 500", choices=()),
    ]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()]))
    assert found == {"call-1": Reason.SUPERSEDED, "call-2": Reason.CALL_FAILED}


def test_the_attempt_whose_answer_a_span_names_counts_instead_of_the_last(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(1, request_key="r"), make_call(2, request_key="r", retry=1)]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()], [llm_span("call-1")]))
    assert found == {"call-1": Reason.TRAINED, "call-2": Reason.SUPERSEDED}


def test_two_requests_under_one_key_both_count_when_spans_name_both(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(1, request_key="r"), make_call(2, request_key="r")]
    spans = [llm_span("call-1"), llm_span("call-2")]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()], spans))
    assert found == {"call-1": Reason.TRAINED, "call-2": Reason.TRAINED}


def test_a_span_that_is_no_llm_call_proves_nothing(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(1, request_key="r"), make_call(2, request_key="r", retry=1)]
    tool = span("tool", **{semconv.OPERATION_NAME: "execute_tool", semconv.CALL_ID: "call-1"})
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()], [tool]))
    assert found == {"call-1": Reason.SUPERSEDED, "call-2": Reason.TRAINED}


def test_without_a_request_key_a_retry_supersedes_the_equal_request_before_it(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    body = {"messages": [{"role": "user", "content": "same"}]}
    calls = [
        make_call(1, request=body),
        make_call(2),
        make_call(3, request=dict(body), retry=1),
        make_call(4, request=dict(body), retry=2),
    ]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()]))
    assert found == {
        "call-1": Reason.SUPERSEDED,
        "call-2": Reason.TRAINED,
        "call-3": Reason.SUPERSEDED,
        "call-4": Reason.TRAINED,
    }


def test_a_retry_repeats_the_equal_request_that_failed_and_not_the_one_that_was_answered(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    body = {"messages": [{"role": "user", "content": "same"}]}
    calls = [
        make_call(1, request=body, status=CallStatus.ERROR, reason="HTTP 429", choices=()),
        make_call(2, request=body),
        make_call(3, request=body, retry=1),
    ]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()]))
    assert found == {"call-1": Reason.CALL_FAILED, "call-2": Reason.TRAINED, "call-3": Reason.TRAINED}


def test_two_retries_of_parallel_equal_requests_supersede_one_each(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    body = {"messages": [{"role": "user", "content": "same"}]}
    calls = [
        make_call(1, request=body),
        make_call(2, request=body),
        make_call(3, request=body),
        make_call(4, request=body, retry=1),
        make_call(5, request=body, retry=1),
    ]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()]))
    assert sorted(found.values()) == [Reason.SUPERSEDED] * 2 + [Reason.TRAINED] * 3
    assert found["call-4"] is found["call-5"] is Reason.TRAINED


def test_an_equal_prompt_alone_is_no_retry(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    body = {"messages": [{"role": "user", "content": "same"}]}
    calls = [make_call(1, request=body), make_call(2, request=body)]
    assert set(reasons(extract(make_rollout_record(), calls, [make_reward_record()])).values()) == {Reason.TRAINED}


def test_a_retry_in_another_attempt_supersedes_nothing(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(1, request_key="r"), make_call(2, request_key="r", retry=1, attempt=1)]
    found = reasons(extract(make_rollout_record(), calls, [make_reward_record()]))
    assert found == {"call-1": Reason.TRAINED, "call-2": Reason.OTHER_ATTEMPT}


def test_the_agent_is_named_by_the_call_else_by_its_span_else_by_the_nearest_span_above(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(n, agent="header" if n == 1 else None) for n in (1, 2, 3, 4)]
    spans = [
        span("outer", **{semconv.AGENT_NAME: "planner"}),
        span("node", "outer"),
        llm_span("call-1", parent_id="node"),
        llm_span("call-2", parent_id="node", **{semconv.AGENT_NAME: "coder"}),
        llm_span("call-3", parent_id="node"),
        llm_span("call-4", parent_id="not-recorded"),
    ]
    found = extract(make_rollout_record(), calls, [make_reward_record()], spans).transitions
    assert [t.agent for t in found] == ["header", "coder", "planner", None]


def test_spans_whose_parents_form_a_ring_do_not_hang_the_search(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    spans = [llm_span("call-1", span_id="a", parent_id="b"), span("b", "a")]
    (found,) = extract(make_rollout_record(), [make_call(1)], [make_reward_record()], spans).transitions
    assert found.agent is None


def test_what_could_have_been_trained_is_dropped_and_what_is_no_transition_is_excluded() -> None:
    assert fate_of(Reason.TRAINED) is Fate.TRAINED
    assert {reason for reason in Reason if fate_of(reason) is Fate.EXCLUDED} == {
        Reason.NOT_TRAINED_POLICY,
        Reason.NOT_TRAINED_AGENT,
        Reason.CALL_FAILED,
        Reason.UNDELIVERED,
        Reason.SUPERSEDED,
        Reason.NO_TOKEN_IDS,
        Reason.NO_LOGPROBS,
        Reason.EMPTY_ACTION,
        Reason.ORPHAN,
        Reason.LATE,
        Reason.EVALUATION,
    }


def test_only_calls_of_the_agents_to_be_trained_are_transitions_and_the_others_say_whose_they_are(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    calls = [make_call(1, agent="writer"), make_call(2, agent="checker"), make_call(3), make_call(4)]
    spans = [llm_span("call-3", **{semconv.AGENT_NAME: "rewriter"})]
    extraction = extract(
        make_rollout_record(), calls, [make_reward_record()], spans, trained_agents={"policy": {"writer", "rewriter"}}
    )
    assert [(t.call_id, t.agent) for t in extraction.transitions] == [("call-1", "writer"), ("call-3", "rewriter")]
    assert [(entry.call_id, entry.fate, entry.reason, entry.detail) for entry in extraction.entries] == [
        ("call-2", Fate.EXCLUDED, Reason.NOT_TRAINED_AGENT, "the agent 'checker' is not trained"),
        ("call-4", Fate.EXCLUDED, Reason.NOT_TRAINED_AGENT, "the call is of no known agent"),
    ]
    assert extraction.agents == {"call-1": "writer", "call-2": "checker", "call-3": "rewriter", "call-4": None}


def test_the_fault_of_a_call_is_named_before_its_agent(
    make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    call = make_call(1, agent="checker", choices=(choice(ids=None),))
    extraction = extract(make_rollout_record(), [call], [make_reward_record()], trained_agents={"policy": {"writer"}})
    assert reasons(extraction) == {"call-1": Reason.NO_TOKEN_IDS}
