"""All that is known of a rollout, put together: tokens, mask, rewards, returns, advantages, fates and reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from spangrad.errors import StoreError
from spangrad.store._contract import Store
from spangrad.store._explanation_text import render_explanation
from spangrad.store._prompt_origin import PromptOrigin, prompt_origin
from spangrad.store._work_tree import ExplainedWork, work_tree
from spangrad.transitions import (
    NO_CHOICE,
    Call,
    Choice,
    Extraction,
    FailureKind,
    Fate,
    LedgerEntry,
    Reason,
    RewardRecord,
    RewardWeights,
    RolloutRecord,
    Treatment,
    entry_of,
    extract,
    fate_of,
)

Decode = Callable[[Sequence[int]], str]

FAILURES_NOTE: Final = "failures"
"""Under which note a run keeps what is done about failures, by kind; the latest, likewise."""
REWARD_WEIGHTS_NOTE: Final = "reward_weights"
"""Under which note a run keeps the weights of rewards by name; the latest ones, where a resumed run has others."""


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """One choice of one call."""

    call_id: str
    choice: int
    model: str
    policy: str | None
    policy_version: int | None
    endpoint: str
    agent: str | None
    state: str | None
    """What the agent called its state."""
    score: float | None
    """How far along the agent said it was there."""
    status: str
    """How the call ended: ok, error or undelivered."""
    finish_reason: str | None
    prompt_ids: tuple[int, ...] | None
    """None when the engine did not say."""
    prompt_text: str
    prompt_origin: PromptOrigin | None
    """Whether the prompt goes on from an earlier call's tokens, and why not; None where that is not known."""
    action_ids: tuple[int, ...] | None
    """None when the engine did not say."""
    action_text: str
    decoded: bool
    """Whether the texts are there; without a tokenizer they are empty."""
    answer: str
    """What the agent was told, as text: of a message that holds more than text, its JSON."""
    action_pieces: tuple[str, ...]
    """Text of each sampled token by itself; a character that spans tokens shows as the replacement character."""
    mask: tuple[int, ...]
    """Per token of prompt and action: 1 where an update learnt from it, else 0. A prompt token is never learnt."""
    logprobs: tuple[float, ...] | None
    """The sampler's, per sampled token."""
    reward: float | None
    """The call's own reward, weighted."""
    episode_return: float | None
    advantage: float | None
    step: int | None
    """The training step that used or dropped it."""
    fate: str
    """trained, dropped or excluded; or pending: a transition that no update has taken or dropped so far."""
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ExplainedReward:
    """One reward of the attempt."""

    name: str
    value: float
    source: str
    call_id: str | None
    """The call it rewards; None for the whole rollout."""
    counted: bool
    """False for a reward of a call that gave no transition."""
    weight: float | None
    """What the run's settings multiply it with; None where its name has no weight, though others have."""


@dataclass(frozen=True, slots=True)
class ExplainedAttempt:
    """One attempt of the rollout, its rewards, and its calls in the order they were received."""

    attempt: int
    task_id: str
    group_id: str
    phase: str
    step: int | None
    status: str
    error: str
    rewards: tuple[ExplainedReward, ...]
    calls: tuple[ExplainedCall, ...]
    work: tuple[ExplainedWork, ...]
    """What the rollout's spans say was done, in the order it began, each piece followed by its parts; empty without spans."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rollout explained; `to_json` and `render` give it to programs and to people."""

    rollout_id: str
    attempts: tuple[ExplainedAttempt, ...]

    def to_json(self) -> dict[str, Any]:
        """The whole explanation as JSON-able values; `mask` is as long as `prompt_ids` and `action_ids` together."""
        return asdict(self)

    def render(self, *, max_prompt_chars: int = 600) -> str:
        """Plain text without markup, one block per attempt and call.

        Args:
            max_prompt_chars: of a longer prompt only the end is shown, with a note of what is left out.
        """
        return render_explanation(self, max_prompt_chars=max_prompt_chars)


def explain(store: Store, rollout_id: str, *, decode: Decode | None) -> Explanation:
    """Explains a rollout from what the store holds of it.

    Args:
        store: where the rollout was recorded.
        rollout_id: which one.
        decode: token ids -> text, as the policy's tokenizer does it; None where that is not known.

    Raises:
        StoreError: no such rollout.
    """
    latest = store.rollout(rollout_id)
    if latest is None:
        raise StoreError(
            f"The store has no rollout {rollout_id!r}", cure="See which there are with `spangrad rollouts`"
        )
    known = (store.rollout(rollout_id, number) for number in range(latest.attempt + 1))
    return Explanation(rollout_id, tuple(_attempt(store, record, decode) for record in known if record is not None))


def _attempt(store: Store, record: RolloutRecord, decode: Decode | None) -> ExplainedAttempt:
    calls = store.calls(record.rollout_id, record.attempt)
    rewards = store.rewards(record.rollout_id, record.attempt)
    spans = [span for span in store.spans(record.rollout_id) if span.attempt in {None, record.attempt}]
    weights = RewardWeights(store.note(REWARD_WEIGHTS_NOTE) or {})
    noted = store.note(FAILURES_NOTE) or {}
    treatments = {FailureKind(kind): Treatment(treatment) for kind, treatment in noted.items()}
    extraction = extract(record, calls, rewards, spans, weights=weights, treatments=treatments)
    # What the ledger says holds; the extraction fills in for rollouts that no training step has looked at.
    known = (*extraction.entries, *_untrained(record, extraction), *store.ledger(rollout_id=record.rollout_id))
    entries = {(entry.call_id, entry.choice): entry for entry in known}
    by_id = {call.call_id: call for call in calls}
    return ExplainedAttempt(
        attempt=record.attempt,
        task_id=record.task_id,
        group_id=record.group_id,
        phase=record.phase,
        step=record.step,
        status=record.status.value,
        error=record.error,
        rewards=tuple(
            _reward(reward, weights, counted=reward not in extraction.unmatched_rewards) for reward in rewards
        ),
        calls=tuple(
            _call(
                call,
                choice,
                entries.get((call.call_id, choice.index)),
                agent=extraction.agents.get(call.call_id),
                origin=prompt_origin(call, by_id, decode or _no_text),
                decode=decode,
            )
            for call in sorted(calls, key=lambda call: (call.received_at, call.call_id))
            for choice in call.choices or (NO_CHOICE,)
        ),
        work=work_tree(spans),
    )


def _no_text(token_ids: Sequence[int]) -> str:
    """Stands for a tokenizer that is not known."""
    del token_ids
    return ""


def _untrained(record: RolloutRecord, extraction: Extraction) -> list[LedgerEntry]:
    """Ledger rows of transitions that no training will ever look at; that nobody rewarded them is no fault there."""
    if record.phase != "collect":
        return []
    unrewarded = [
        replace(entry, fate=fate_of(Reason.NOT_IN_TRAINING), reason=Reason.NOT_IN_TRAINING, detail=_NOT_REWARDED)
        for entry in extraction.entries
        if entry.reason is Reason.NO_REWARD
    ]
    return unrewarded + [
        entry_of(transition, record.step, Reason.NOT_IN_TRAINING, "recorded outside a training run")
        for transition in extraction.transitions
    ]


_NOT_REWARDED: Final = "recorded outside a training run; nobody rewarded the rollout"


def _reward(reward: RewardRecord, weights: RewardWeights, *, counted: bool) -> ExplainedReward:
    return ExplainedReward(
        name=reward.name,
        value=reward.value,
        source=reward.source,
        call_id=reward.call_id,
        counted=counted,
        weight=None if weights.lacking([reward.name]) else weights.of(reward.name),
    )


def _call(
    call: Call,
    choice: Choice,
    entry: LedgerEntry | None,
    *,
    agent: str | None,
    origin: PromptOrigin | None,
    decode: Decode | None,
) -> ExplainedCall:
    action = choice.token_ids
    text = decode or (lambda _: "")
    trained = entry is not None and entry.fate is Fate.TRAINED
    return ExplainedCall(
        call_id=call.call_id,
        choice=choice.index,
        model=call.model,
        policy=call.policy,
        policy_version=call.policy_version,
        endpoint=call.endpoint,
        agent=agent,
        state=call.state,
        score=call.score,
        status=call.status.value,
        finish_reason=choice.finish_reason,
        prompt_ids=call.prompt_ids,
        prompt_text=text(call.prompt_ids) if call.prompt_ids else "",
        prompt_origin=origin,
        action_ids=action,
        action_text=text(action) if action else "",
        decoded=decode is not None,
        answer=_answer(choice.message),
        action_pieces=tuple(text((token,)) for token in action or ()),
        mask=(0,) * len(call.prompt_ids or ()) + (int(trained),) * len(action or ()),
        logprobs=choice.logprobs,
        reward=None if entry is None else entry.reward,
        episode_return=None if entry is None else entry.episode_return,
        advantage=None if entry is None else entry.advantage,
        step=None if entry is None else entry.step,
        fate="pending" if entry is None else entry.fate.value,
        reason="pending" if entry is None else entry.reason.value,
        detail="no training step has used or dropped it so far" if entry is None else entry.detail,
    )


def _answer(message: Mapping[str, Any]) -> str:
    """The text of an assistant's message, or the JSON of what else it holds."""
    more = {key: value for key, value in message.items() if key not in {"role", "content"} and value}
    content = message.get("content")
    if more or not isinstance(content, str):
        return json.dumps({"content": content, **more}, ensure_ascii=False) if message else ""
    return content
