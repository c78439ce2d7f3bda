"""What goes into a store comes out of it, in the order the contract says."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import RewardError, StoreError
from spangrad.spans import Span, SpanEvent
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store, open_store
from spangrad.store._rows import call_records, call_row, choice_rows
from spangrad.transitions import Call, CallStatus, Choice, Continuation, Continuity, Fate, LedgerEntry, Reason

CALL = Call(
    call_id="c1",
    rollout_id="r1",
    attempt=1,
    request_key="k1",
    retry=0,
    received_at=1700000000.125,
    finished_at=1700000001.5,
    model="policy",
    policy="main",
    policy_version=3,
    endpoint="torch",
    agent="solver",
    status=CallStatus.OK,
    reason="",
    prompt_ids=(1, 2, 49151),
    temperature=0.7,
    top_p=0.95,
    top_k=40,
    request={"messages": [{"role": "user", "content": "2+2?"}], "n": 2},
    choices=(
        Choice(0, (4, 2), (-0.5, -1.25), "stop", {"role": "assistant", "content": "4"}),
        Choice(1, (5,), (-3.0,), "length", {"role": "assistant", "content": "5"}),
    ),
    state="küche ☕",
    score=0.1,
)
ROLLOUT = RolloutRecord(
    rollout_id="r1",
    attempt=1,
    task_id="t1",
    group_id="g1",
    phase="train",
    step=1,
    status=RolloutStatus.RUNNING,
    error="",
    output="",
    started_at=1.0,
    finished_at=None,
)
REWARD = RewardRecord("r1", 1, None, "reward", 1.0, "return_value", 2.0)
SPAN = Span(
    trace_id="a" * 32,
    span_id="b" * 16,
    parent_id="c" * 16,
    rollout_id="r1",
    attempt=1,
    name="chat",
    kind="client",
    start_ns=2**62,
    end_ns=None,
    status="error",
    status_message="böse",
    attributes={"ids": [1, 2], "nested": {"x": None}},
    events=(SpanEvent("e", 5, {"k": [0.5]}),),
    scope="lib",
)
ENTRY = LedgerEntry("c1", 0, "r1", 1, 4, Fate.TRAINED, Reason.TRAINED, "why", 7, 0.5, 1.5, -0.25)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "spangrad.db")
    yield opened
    opened.close()


def test_a_call_comes_back_as_it_was(store: Store) -> None:
    store.submit_call(CALL).result()
    assert store.calls("r1") == [CALL]


def test_a_call_without_ids_differs_from_one_with_none_sampled(store: Store) -> None:
    choice = Choice(0, None, None, None, {})
    unknown = replace(CALL, prompt_ids=None, choices=(choice,), status=CallStatus.ERROR, reason="no ids")
    empty = replace(CALL, call_id="c2", prompt_ids=(), choices=(replace(choice, token_ids=(), logprobs=()),))
    store.submit_call(unknown).result()
    store.submit_call(empty).result()
    assert store.calls("r1") == [unknown, empty]


def test_a_call_without_choices_is_kept(store: Store) -> None:
    failed = replace(
        CALL, choices=(), finished_at=None, policy=None, policy_version=None, agent=None, state=None, score=None
    )
    store.submit_call(failed).result()
    assert store.calls("r1") == [failed]


def test_where_a_prompt_came_from_comes_back(store: Store) -> None:
    whole = [Continuation(kind, "c1", "c0", 2**31 - 1) for kind in Continuity]
    origins = [*whole, Continuation(Continuity.FIRST), Continuation(Continuity.TEMPLATE, None, "c0", 0), None]
    calls = [replace(CALL, call_id=f"c{n:02}", continuation=origin) for n, origin in enumerate(origins)]
    for call in calls:
        store.submit_call(call).result()
    assert store.calls("r1") == calls


def test_a_call_survives_closing_and_opening(tmp_path: Path) -> None:
    for name in ("a folder/ü?%23#.db", "plain.db"):
        store = open_store(tmp_path / name)
        store.submit_call(CALL).result()
        store.close()
        again = open_store(tmp_path / name)
        assert again.calls("r1") == [CALL]
        again.close()
        assert (tmp_path / name).is_file()


def test_calls_come_in_the_order_they_were_received_then_by_id(store: Store) -> None:
    times = {"c3": 5.0, "c9": 1.0, "c1": 5.0, "c2": 3.0}
    for call_id, at in times.items():
        store.submit_call(replace(CALL, call_id=call_id, received_at=at)).result()
    assert [call.call_id for call in store.calls("r1")] == ["c9", "c2", "c1", "c3"]


def test_calls_are_found_by_rollout_and_attempt_and_orphans_by_none(store: Store) -> None:
    wanted = {"c1": ("r1", 1), "c2": ("r1", 2), "c3": ("r2", 1), "c4": (None, 1)}
    for call_id, (rollout_id, attempt) in wanted.items():
        store.submit_call(replace(CALL, call_id=call_id, rollout_id=rollout_id, attempt=attempt)).result()
    assert [call.call_id for call in store.calls("r1")] == ["c1", "c2"]
    assert [call.call_id for call in store.calls("r1", 2)] == ["c2"]
    assert [call.call_id for call in store.calls(None)] == ["c4"]
    assert store.calls("r1", 3) == []
    assert all(len(call.choices) == 2 for call in store.calls("r1"))


def test_text_that_utf8_or_databases_cannot_hold_is_kept_in_json_and_spelled_out_in_prose(store: Store) -> None:
    odd = "a\udc80b\0c😀"
    call = replace(CALL, request={"messages": odd}, reason=odd, status=CallStatus.ERROR)
    store.submit_call(call).result()
    (found,) = store.calls("r1")
    assert found.request == {"messages": odd}
    assert found.reason == r"a\udc80b\x00c😀"


def test_mappings_of_any_kind_are_kept_as_json_objects(store: Store) -> None:
    store.submit_call(replace(CALL, request=MappingProxyType({"a": MappingProxyType({"b": 1})}))).result()
    assert store.calls("r1")[0].request == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (replace(CALL, request={"x": object()}), "the request of call c1"),
        (replace(CALL, prompt_ids=(2**31,)), "the prompt ids of call c1"),
        (replace(CALL, choices=(Choice(0, (1,), ("x",), None, {}),)), "the log-probabilities of call c1"),  # type: ignore[arg-type] # wrong on purpose
    ],
)
def test_a_call_that_cannot_be_kept_fails_its_own_future(store: Store, call: Call, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        store.submit_call(call).result()
    assert store.counts()["calls"] == 0


def test_a_value_the_database_refuses_fails_its_own_future(store: Store) -> None:
    with pytest.raises(StoreError, match="Cannot save call c1: it breaks a rule of the table"):
        store.submit_call(replace(CALL, temperature=math.nan)).result()
    with pytest.raises(StoreError, match=r"Cannot save call c1: .*int too large"):
        store.submit_call(replace(CALL, top_k=2**63)).result()
    store.submit_call(CALL).result()


@given(
    ids=st.lists(st.integers(0, 2**31 - 1), max_size=50),
    logprobs=st.lists(st.floats(width=32, allow_nan=False), max_size=50),
)
def test_ids_and_float32_logprobs_come_back_exactly(ids: list[int], logprobs: list[float]) -> None:
    call = replace(CALL, prompt_ids=tuple(ids), choices=(Choice(0, tuple(ids), tuple(logprobs), None, {}),))
    (found,) = call_records([call_row(call)], choice_rows(call))
    assert found == call


@given(logprob=st.floats(-1e6, 0))
def test_other_logprobs_come_back_rounded_to_float32(logprob: float) -> None:
    call = replace(CALL, choices=(Choice(0, (1,), (logprob,), None, {}),))
    (found,) = call_records([call_row(call)], choice_rows(call))
    assert found.choices[0].logprobs == struct.unpack("<f", struct.pack("<f", logprob))


def test_a_rollout_is_inserted_then_replaced(store: Store) -> None:
    done = replace(ROLLOUT, status=RolloutStatus.SUCCEEDED, output='{"answer":4}', finished_at=9.0)
    store.save_rollout(ROLLOUT)
    store.save_rollout(done)
    assert store.rollouts() == [done]
    assert store.rollout("r1") == done
    assert store.rollout("r2") is None


def test_a_rollout_is_its_latest_attempt_unless_one_is_named(store: Store) -> None:
    attempts = [replace(ROLLOUT, attempt=n, started_at=10.0 - n) for n in (2, 10, 1)]
    for record in attempts:
        store.save_rollout(record)
    assert store.rollout("r1") == attempts[1]
    assert store.rollout("r1", 1) == attempts[2]
    assert store.rollout("r1", 3) is None


def test_rollouts_come_in_the_order_they_started_and_the_limit_keeps_the_latest(store: Store) -> None:
    starts = {"r1": 3.0, "r2": 1.0, "r3": 2.0, "r4": 3.0}
    for rollout_id, at in starts.items():
        store.save_rollout(replace(ROLLOUT, rollout_id=rollout_id, started_at=at))
    assert [r.rollout_id for r in store.rollouts()] == ["r2", "r3", "r1", "r4"]
    assert [r.rollout_id for r in store.rollouts(limit=2)] == ["r1", "r4"]
    assert store.rollouts(limit=0) == []


def test_rollouts_are_chosen_by_phase_step_and_status(store: Store) -> None:
    kinds = {
        "r1": ("train", 1, RolloutStatus.FAILED),
        "r2": ("train", 2, RolloutStatus.SUCCEEDED),
        "r3": ("evaluate", 0, RolloutStatus.SUCCEEDED),
    }
    for rollout_id, (phase, step, status) in kinds.items():
        store.save_rollout(replace(ROLLOUT, rollout_id=rollout_id, phase=phase, step=step, status=status))
    chosen: list[tuple[dict[str, Any], list[str]]] = [
        ({"phase": "train"}, ["r1", "r2"]),
        ({"step": 0}, ["r3"]),
        ({"status": RolloutStatus.SUCCEEDED}, ["r2", "r3"]),
        ({"phase": "train", "status": RolloutStatus.SUCCEEDED, "step": 2}, ["r2"]),
        ({"phase": "collect"}, []),
    ]
    for filters, expected in chosen:
        assert [r.rollout_id for r in store.rollouts(**filters)] == expected


def test_rewards_come_back_in_the_order_they_were_given(store: Store) -> None:
    given_ = [
        REWARD,
        replace(REWARD, call_id="c1", value=-0.5, at=1.0),
        replace(REWARD, name="format", attempt=2),
        REWARD,
        replace(REWARD, rollout_id="r2"),
    ]
    for reward in given_:
        store.add_reward(reward)
    assert store.rewards("r1") == given_[:4]
    assert store.rewards("r1", 2) == [given_[2]]


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None])
def test_a_reward_that_is_no_finite_number_is_refused(store: Store, value: Any) -> None:
    with pytest.raises(RewardError, match=r"The reward 'reward' of rollout r1 is"):
        store.add_reward(replace(REWARD, value=value))
    assert store.rewards("r1") == []


def test_spans_come_back_by_start_and_a_span_seen_before_is_replaced(store: Store) -> None:
    early = replace(SPAN, span_id="d" * 16, start_ns=1)
    ended = replace(SPAN, end_ns=2**62 + 5)
    store.add_spans([SPAN, early])
    store.add_spans(iter([ended]))
    store.add_spans([])
    assert store.spans("r1") == [early, ended]


def test_of_one_span_given_twice_at_once_the_last_counts(store: Store) -> None:
    store.add_spans([SPAN, replace(SPAN, name="later")])
    assert [span.name for span in store.spans("r1")] == ["later"]


def test_no_rollout_replaces_a_span_of_another(store: Store) -> None:
    store.add_spans([SPAN])
    store.add_spans([replace(SPAN, rollout_id="r2", name="forged"), replace(SPAN, rollout_id=None)])
    assert store.spans("r1") == [SPAN]
    assert store.counts()["spans"] == 3


def test_a_later_ledger_entry_of_a_choice_replaces_the_earlier(store: Store) -> None:
    other = replace(ENTRY, choice=1, fate=Fate.DROPPED, reason=Reason.ZERO_VARIANCE, advantage=None, reward=None)
    later = replace(ENTRY, step=5, fate=Fate.DROPPED, reason=Reason.TOO_LONG)
    store.add_ledger([ENTRY, other])
    store.add_ledger([later])
    store.add_ledger([])
    assert store.ledger() == [other, later]


def test_ledger_entries_are_chosen_by_rollout_and_step(store: Store) -> None:
    entries = [
        ENTRY,
        replace(ENTRY, call_id="c2", step=5),
        replace(ENTRY, call_id="c3", rollout_id="r2"),
        replace(ENTRY, call_id="c4", rollout_id=None, step=None),
    ]
    store.add_ledger(entries)
    assert store.ledger() == entries
    assert store.ledger(rollout_id="r1") == entries[:2]
    assert store.ledger(step=4) == [entries[0], entries[2]]
    assert store.ledger(rollout_id="r1", step=5) == [entries[1]]


def test_a_ledger_number_that_is_nan_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="its advantage is NaN"):
        store.add_ledger([ENTRY, replace(ENTRY, call_id="c2", advantage=math.nan)])
    assert store.ledger() == []


def test_notes_keep_json_values_under_keys(store: Store) -> None:
    assert store.note("seed") is None
    for value in (1, [1, {"a": None}], "text", None, False):
        store.set_note("seed", value)
        assert store.note("seed") == value
    with pytest.raises(StoreError, match="the note 'bad'"):
        store.set_note("bad", {1, 2})


def test_counts_tell_the_rows_of_every_table(store: Store) -> None:
    assert set(store.counts().values()) == {0}
    store.save_rollout(ROLLOUT)
    store.submit_call(CALL).result()
    store.add_reward(REWARD)
    store.add_spans([SPAN])
    store.add_ledger([ENTRY])
    store.set_note("a", 1)
    assert store.counts() == {
        "rollouts": 1,
        "calls": 1,
        "choices": 2,
        "rewards": 1,
        "spans": 1,
        "ledger": 1,
        "notes": 1,
    }
