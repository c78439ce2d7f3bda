"""Masks, ids and log-probabilities over random trees of calls: several agents, branches, truncated answers, faults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spangrad.lightningrl import GRPO, RLOO, Discounted, Identical, LightningRL
from spangrad.store import RewardRecord, RolloutRecord, Store, explain, open_store
from spangrad.transitions import Call, CallStatus, Choice, TransitionBatch, extract, pack_sequences

MakeRollout = Callable[..., RolloutRecord]
MakeReward = Callable[..., RewardRecord]
MakeCall = Callable[..., Call]

FAULTS = ("", "", "", "", "error", "undelivered", "no ids", "no logprobs", "short logprobs", "empty", "other policy")
SAMPLED, TOOL = st.integers(0, 4), st.integers(5, 9)


@dataclass(frozen=True)
class Node:
    """A call: which earlier call of its rollout it goes on from (-1: none), what it sampled, and what the tools then said."""

    parent: int
    sampled: tuple[int, ...]
    tools: tuple[int, ...]
    truncated: bool
    fault: str
    agent: str | None


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """The calls of a rollout, each after its parent; equal parents are branches."""
    return [
        Node(
            parent=draw(st.integers(-1, number - 1)),
            sampled=tuple(draw(st.lists(SAMPLED, min_size=1, max_size=5))),
            tools=tuple(draw(st.lists(TOOL, min_size=1, max_size=4))),
            truncated=draw(st.booleans()),
            fault=draw(st.sampled_from(FAULTS)),
            agent=draw(st.sampled_from([None, "writer", "critic"])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


def calls_of(tree: Sequence[Node], rollout_id: str, make_call: MakeCall) -> list[Call]:
    """The tree as the gateway would have recorded it: a prompt is its parent's prompt, answer and tools, in the same tokens."""
    prompts: list[tuple[int, ...]] = []
    calls = []
    for number, node in enumerate(tree):
        if node.parent < 0:
            prompt: tuple[int, ...] = (5, 6, 7)
        else:
            before = tree[node.parent]
            prompt = prompts[node.parent] + before.sampled + before.tools
        prompts.append(prompt)
        ids = {"no ids": None, "empty": ()}.get(node.fault, node.sampled)
        logprobs = None if ids is None or node.fault == "no logprobs" else tuple(-0.5 for _ in ids)
        if node.fault == "short logprobs" and logprobs is not None:
            logprobs = logprobs[:-1]
        answered = node.fault not in {"error", "undelivered"}
        message = {"role": "assistant", "content": "answer"}
        choice = Choice(0, ids, logprobs, "length" if node.truncated else "stop", message)
        calls.append(
            make_call(
                number,
                call_id=f"{rollout_id}-call-{number}",
                rollout_id=rollout_id,
                agent=node.agent,
                prompt_ids=prompt,
                choices=(choice,) if answered else (),
                status=CallStatus.OK if answered else CallStatus(node.fault),
                policy=None if node.fault == "other policy" else "policy",
            )
        )
    return calls


def recorded(
    store: Store,
    forest: Sequence[tuple[list[Node], float]],
    make_rollout_record: MakeRollout,
    make_call: MakeCall,
    make_reward_record: MakeReward,
) -> list[RolloutRecord]:
    """The rollouts of one group, written to the store."""
    rollouts = []
    for number, (tree, reward) in enumerate(forest):
        rollout = make_rollout_record(rollout_id=f"rollout-{number}")
        store.save_rollout(rollout)
        written = [store.submit_call(call) for call in calls_of(tree, rollout.rollout_id, make_call)]
        for one in written:
            one.result(timeout=30)
        store.add_reward(make_reward_record(rollout_id=rollout.rollout_id, value=reward))
        rollouts.append(rollout)
    return rollouts


@settings(max_examples=30)
@given(
    forest=st.lists(st.tuples(trees(), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=4),
    longest=st.integers(3, 40),
    algorithm=st.sampled_from([LightningRL(Identical(), GRPO()), LightningRL(Discounted(0.9), RLOO())]),
)
def test_masks_add_up_to_the_sampled_tokens_of_kept_calls_and_every_call_says_why(
    *,
    forest: list[tuple[list[Node], float]],
    longest: int,
    algorithm: LightningRL,
    make_rollout_record: MakeRollout,
    make_call: MakeCall,
    make_reward_record: MakeReward,
) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(open_store(Path(folder) / "spangrad.db")) as store:
        rollouts = recorded(store, forest, make_rollout_record, make_call, make_reward_record)
        extractions = [extract(r, store.calls(r.rollout_id), store.rewards(r.rollout_id)) for r in rollouts]
        batch = TransitionBatch(tuple(t for extraction in extractions for t in extraction.transitions))
        report = algorithm.compute(batch, max_sequence=longest)
        for extraction in extractions:
            store.add_ledger(extraction.entries)
        store.add_ledger(report.ledger(step=1))
        explained = [
            call
            for rollout in rollouts
            for attempt in explain(store, rollout.rollout_id, decode=str).attempts
            for call in attempt.calls
        ]
    # Which calls could be kept follows from the tree alone.
    usable = {
        f"rollout-{r}-call-{c}": node.sampled
        for r, (tree, _) in enumerate(forest)
        for c, node in enumerate(tree)
        if not node.fault
    }
    assert {t.call_id: t.action_ids for t in batch.transitions} == usable
    kept = {t.call_id for t, trained in zip(batch.transitions, report.trained, strict=True) if trained}
    for transition in batch.transitions:
        assert len(transition.logprobs) == len(transition.action_ids)
        if len(transition.prompt_ids) + len(transition.action_ids) > longest:
            assert transition.call_id not in kept

    assert len(explained) == sum(len(tree) for tree, _ in forest)
    for call in explained:
        assert len(call.mask) == len(call.prompt_ids or ()) + len(call.action_ids or ())
        assert sum(call.mask) == (len(usable[call.call_id]) if call.call_id in kept else 0)
        assert not any(call.mask[: len(call.prompt_ids or ())])
        assert (call.fate == "trained") == (call.call_id in kept)
        assert call.reason not in {"", "pending"}
        if call.fate == "trained":
            assert call.episode_return is not None
            assert call.advantage
    assert sum(sum(call.mask) for call in explained) == sum(len(usable[call_id]) for call_id in kept)

    # What the learner is given has one row per kept call and one target per sampled token of it, and no other.
    update = batch.select(report.trained).transitions
    packs = pack_sequences(update, budget=64).packs
    targets = sorted((int(o), int(k)) for pack in packs for o, k in zip(pack.owners, pack.offsets, strict=True))
    assert targets == [(row, k) for row, t in enumerate(update) for k in range(len(t.action_ids))]
    assert np.all((report.token_weights != 0) == report.trained)
