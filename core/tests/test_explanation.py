"""`explain`, on a real SQLite store: everything known of a rollout, for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spangrad.errors import StoreError
from spangrad.lightningrl import GRPO, Identical, LightningRL
from spangrad.store import (
    REWARD_WEIGHTS_NOTE,
    RewardRecord,
    RolloutRecord,
    RolloutStatus,
    Store,
    explain,
    open_store,
)
from spangrad.transitions import Call, CallStatus, Choice, TransitionBatch, extract

MakeRollout = Callable[..., RolloutRecord]
MakeReward = Callable[..., RewardRecord]
MakeCall = Callable[..., Call]

WORDS = {1: "What", 2: " is", 3: " 2+2?\n", 7: "four", 8: "<end>", 9: "fi\x1bve"}


STORY = """\
Rollout rollout-0

Attempt 0: succeeded (train, step 3)
  task task-0, group group-0
  reward right = 0.75 for the rollout, from return_value
  reward tidy = 0.25 for the call call-1, from http
  reward lost = 5 for the call call-2, from return_value; counts for nothing: that call gave no transition

  Call 1 of 2: call-1
    model agent-model (policy policy version 4), agent solver: ok, finished by stop
    trained in step 3
    reward 0.25, return 1, advantage 0.7071
    prompt, 3 tokens, mask 0:
      | What is 2+2?
      |\x20
    sampled, 2 tokens, mask 1:
      | four<end>
    log-probabilities:
      'four' -0.500, '<end>' -0.250

  Call 2 of 2: call-2
    model agent-model (policy policy version 4): error
    excluded in step 3: call_failed (HTTP 500)
    reward 5, return -, advantage -
    prompt, 3 tokens, mask 0:
      | What is 2+2?
      |\x20
    sampled: token ids unknown"""


def decode(token_ids: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in token_ids)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "spangrad.db")
    yield opened
    opened.close()


def keep(store: Store, rollout: RolloutRecord, calls: Sequence[Call], rewards: Sequence[RewardRecord]) -> None:
    store.save_rollout(rollout)
    for call in calls:
        store.submit_call(call).result(timeout=30)
    for reward in rewards:
        store.add_reward(reward)


def train(store: Store, rollouts: Sequence[RolloutRecord]) -> None:
    """What a training step writes to the ledger."""
    extractions = [extract(r, store.calls(r.rollout_id), store.rewards(r.rollout_id)) for r in rollouts]
    batch = TransitionBatch(tuple(t for extraction in extractions for t in extraction.transitions))
    for extraction in extractions:
        store.add_ledger(extraction.entries)
    store.add_ledger(LightningRL(Identical(), GRPO()).compute(batch).ledger(step=3))


@pytest.fixture
def trained(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> Store:
    """Two rollouts of a task after a training step; the first has a trained call and a failed one."""
    good = make_rollout_record(step=3)
    bad = make_rollout_record(rollout_id="rollout-1", step=3)
    calls = [
        make_call(1, agent="solver"),
        make_call(2, status=CallStatus.ERROR, reason="HTTP 500", choices=()),
    ]
    rewards = [
        make_reward_record(name="right", value=0.75),
        make_reward_record(name="tidy", value=0.25, call_id="call-1", source="http"),
        make_reward_record(name="lost", value=5.0, call_id="call-2"),
    ]
    keep(store, good, calls, rewards)
    wrong = Choice(0, (9,), (-2.0,), "stop", {"role": "assistant", "content": "five"})
    keep(
        store,
        bad,
        [make_call(3, rollout_id="rollout-1", choices=(wrong,))],
        [make_reward_record(rollout_id="rollout-1", value=0.0)],
    )
    train(store, [good, bad])
    return store


def test_a_trained_call_shows_its_tokens_mask_return_and_advantage(trained: Store) -> None:
    (attempt,) = explain(trained, "rollout-0", decode=decode).attempts
    assert (attempt.attempt, attempt.status, attempt.phase, attempt.step) == (0, "succeeded", "train", 3)
    assert [(r.name, r.value, r.source, r.call_id, r.counted) for r in attempt.rewards] == [
        ("right", 0.75, "return_value", None, True),
        ("tidy", 0.25, "http", "call-1", True),
        ("lost", 5.0, "return_value", "call-2", False),
    ]
    call, _ = attempt.calls
    assert (call.call_id, call.model, call.policy, call.policy_version) == ("call-1", "agent-model", "policy", 4)
    assert (call.agent, call.status, call.finish_reason) == ("solver", "ok", "stop")
    assert (call.prompt_ids, call.prompt_text) == ((1, 2, 3), "What is 2+2?\n")
    assert (call.action_ids, call.action_text, call.action_pieces) == ((7, 8), "four<end>", ("four", "<end>"))
    assert call.mask == (0, 0, 0, 1, 1)
    assert call.logprobs == (-0.5, -0.25)
    assert (call.reward, call.episode_return) == (0.25, 1.0)
    assert call.advantage == pytest.approx(0.7071058)
    assert (call.fate, call.reason, call.detail, call.step) == ("trained", "trained", "", 3)


def test_a_call_left_out_shows_why_and_has_an_empty_mask(trained: Store) -> None:
    _, call = explain(trained, "rollout-0", decode=decode).attempts[0].calls
    assert (call.status, call.fate, call.reason, call.detail) == ("error", "excluded", "call_failed", "HTTP 500")
    assert (call.action_ids, call.action_text, call.logprobs) == (None, "", None)
    assert call.mask == (0, 0, 0)
    assert (call.reward, call.episode_return, call.advantage) == (5.0, None, None)


def test_the_json_form_survives_json_and_has_every_field(trained: Store) -> None:
    explanation = explain(trained, "rollout-0", decode=decode)
    again = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
    assert again["rollout_id"] == "rollout-0"
    call = again["attempts"][0]["calls"][0]
    assert len(call["mask"]) == len(call["prompt_ids"]) + len(call["action_ids"])
    assert call["action_pieces"] == ["four", "<end>"]
    assert again["attempts"][0]["rewards"][2]["counted"] is False


def test_the_text_shows_the_whole_story(trained: Store) -> None:
    assert explain(trained, "rollout-0", decode=decode).render() == STORY


def test_the_text_cuts_long_prompts_at_the_front_and_writes_control_characters_out(trained: Store) -> None:
    text = explain(trained, "rollout-1", decode=decode).render(max_prompt_chars=6)
    assert "prompt, 3 tokens, mask 0, the first 7 characters not shown:\n      |  2+2?\n" in text
    assert "| fi\\x1bve" in text
    assert "\x1b" not in text


def test_all_attempts_are_shown_and_a_given_up_one_says_so(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    lost = make_rollout_record(attempt=1, status=RolloutStatus.LOST, error="worker-3 is gone")
    keep(store, lost, [make_call(1, attempt=1)], [])
    keep(store, make_rollout_record(attempt=2), [make_call(2, attempt=2)], [make_reward_record(attempt=2)])
    explanation = explain(store, "rollout-0", decode=decode)
    first, second = explanation.attempts
    assert (first.attempt, first.error) == (1, "worker-3 is gone")
    assert (first.calls[0].fate, first.calls[0].reason) == ("dropped", "rollout_failed")
    assert (second.attempt, second.calls[0].fate, second.calls[0].mask) == (2, "pending", (0, 0, 0, 0, 0))
    assert "  error: worker-3 is gone\n  no reward\n" in explanation.render()
    assert "pending (no training step has used or dropped it so far)" in explanation.render()


def test_a_rollout_outside_training_says_so(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    keep(store, make_rollout_record(phase="collect", step=None), [make_call(1)], [make_reward_record()])
    (call,) = explain(store, "rollout-0", decode=decode).attempts[0].calls
    assert (call.fate, call.reason, call.step) == ("dropped", "not_in_training", None)


def test_a_rollout_without_calls_is_explained_too(store: Store, make_rollout_record: MakeRollout) -> None:
    keep(store, make_rollout_record(status=RolloutStatus.NO_CALL), [], [])
    assert explain(store, "rollout-0", decode=decode).render().endswith("  no reward\n  no call")


def test_several_choices_are_shown_one_by_one(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    choices = (Choice(0, (7,), (-1.0,), "stop", {}), Choice(1, (9,), None, "length", {}))
    keep(store, make_rollout_record(), [make_call(1, choices=choices)], [make_reward_record()])
    explanation = explain(store, "rollout-0", decode=decode)
    assert [(c.choice, c.reason) for c in explanation.attempts[0].calls] == [(0, "pending"), (1, "no_logprobs")]
    assert "Call 2 of 2: call-1, choice 1" in explanation.render()


def test_long_answers_wrap_without_breaking_a_token(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    choice = Choice(0, (7,) * 60, (-1.0,) * 60, "length", {})
    keep(store, make_rollout_record(), [make_call(1, choices=(choice,))], [make_reward_record()])
    lines = explain(store, "rollout-0", decode=decode).render().split("log-probabilities:\n")[1].split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 130 for line in lines)
    assert sum(line.count("'four' -1.000") for line in lines) == 60


def test_an_unknown_rollout_is_an_error_that_says_where_to_look(store: Store) -> None:
    with pytest.raises(StoreError, match=r"no rollout 'nobody'\. See which there are with `spangrad rollouts`"):
        explain(store, "nobody", decode=decode)


def test_weights_states_and_scores_are_shown(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall, make_reward_record: MakeReward
) -> None:
    rewards = [
        make_reward_record(name="right", value=0.5),
        make_reward_record(name="tidy", value=2.0, call_id="call-1"),
        make_reward_record(name="froM", value=1.0),
    ]
    store.set_note(REWARD_WEIGHTS_NOTE, {"right": 1.0, "tidy": 0.1})
    keep(store, make_rollout_record(), [make_call(1, state="kitchen\nlamp off", score=0.25)], rewards)

    explanation = explain(store, "rollout-0", decode=decode)

    (attempt,) = explanation.attempts
    assert [(reward.name, reward.weight) for reward in attempt.rewards] == [
        ("right", 1.0),
        ("tidy", 0.1),
        ("froM", None),
    ]
    (call,) = attempt.calls
    assert (call.state, call.score, call.reward) == ("kitchen\nlamp off", 0.25, 0.2)  # 0.1 * 2
    lines = [line.strip() for line in explanation.render().splitlines()]
    assert "reward right = 0.5 for the rollout, from return_value" in lines
    assert "reward tidy = 2 x 0.1 for the call call-1, from return_value" in "\n".join(lines)
    assert "reward froM = 1 (no weight) for the rollout, from return_value" in lines
    assert "dropped in step 1: no_reward (rewards.weights has no weight for 'froM')" in lines
    assert "state kitchen lamp off, score 0.25" in lines
