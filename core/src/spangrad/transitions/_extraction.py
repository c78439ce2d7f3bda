"""Calls and rewards of a rollout -> transitions, and a ledger row for every call that is none.

A call's own shortcomings are named before those of its rollout: that an endpoint gave no token ids stays visible when the
rollout failed too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spangrad.errors import RewardError
from spangrad.spans import Span
from spangrad.transitions._call import Call, CallStatus, Choice
from spangrad.transitions._continuation import Continuation
from spangrad.transitions._failure import Done, FailureKind, Handling, Treatment, handling
from spangrad.transitions._ledger import LedgerEntry, Reason, fate_of
from spangrad.transitions._retries import superseded_by
from spangrad.transitions._reward_weights import RewardWeights
from spangrad.transitions._rollout import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions._samples import Rewarding, Sample, transitions_of
from spangrad.transitions._span_facts import SpanFacts
from spangrad.transitions._transition import Transition

_CALL_FAULTS = {
    CallStatus.ERROR: Reason.CALL_FAILED,
    CallStatus.LATE: Reason.LATE,
    CallStatus.UNDELIVERED: Reason.UNDELIVERED,
}


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a rollout's calls amount to."""

    transitions: tuple[Transition, ...]
    """In the order the calls were received; what becomes of them is LightningRL's to say."""
    entries: tuple[LedgerEntry, ...]
    """One per call and choice that is no transition, with the reason, in the order the calls were received."""
    unmatched_rewards: tuple[RewardRecord, ...] = ()
    """Rewards of this attempt for calls that gave no transition; they count for nothing and should be reported."""
    agents: Mapping[str, str | None] = field(default_factory=dict)
    """Call id -> the agent that made it, None where it is not known; of all the attempt's calls."""
    continuations: tuple[Continuation | None, ...] = ()
    """Of the attempt's calls that a policy answered in full: where their prompts came from."""
    handling: Handling | None = None
    """What was done about a rollout that failed; None for one that did not, or that only measured."""

    def annotated(self, entry: LedgerEntry) -> LedgerEntry:
        """The ledger's row of a transition of the rollout, which also says what was done about its failure, if it failed."""
        if self.handling is None:
            return entry
        words = self.handling.words
        return replace(entry, detail=f"{words}; {entry.detail}" if entry.detail else words)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why a choice is no transition."""

    reason: Reason
    detail: str


NO_CHOICE = Choice(index=0, token_ids=None, logprobs=None, finish_reason=None, message={})
"""Stands for the answer of a call that has none, so that such a call too has a row in the ledger."""


def extract(
    rollout: RolloutRecord,
    calls: Sequence[Call],
    rewards: Iterable[RewardRecord],
    spans: Iterable[Span] = (),
    *,
    trained_agents: Mapping[str, Collection[str] | None] | None = None,
    weights: RewardWeights | None = None,
    treatments: Mapping[FailureKind, Treatment] | None = None,
) -> Extraction:
    """Sorts a rollout's calls into transitions and the rest. Pure.

    The rollout's reward is the weighted sum of its rollout-scope rewards. The rewards of a call are summed likewise; where
    the call has several choices, its first one carries them, so that they count once.

    Args:
        rollout: the attempt to extract.
        calls: all calls of the rollout, of any attempt; orphans (no rollout id) may be among them.
        rewards: all rewards of the rollout; those of other attempts are ignored.
        spans: the rollout's spans. An LLM-call span with `spangrad.call.id` proves that this call's answer reached the
            agent, and its agent (or the nearest one above it) names a call that names none.
        trained_agents: policy -> the agents whose calls it is trained on. None, or a policy that is not in it, trains on those
            of all agents, known by name or not.
        weights: of rewards by name. A rollout with a reward that lacks a weight is not trained on.
        treatments: what is done about rollouts that failed; a kind that is not named is dropped.

    Raises:
        ValueError: a call or reward belongs to another rollout.
        RewardError: a reward is not a finite number.
    """
    own = _own_rewards(rewards, rollout)
    weights = weights or RewardWeights()
    facts = SpanFacts.of(span for span in spans if span.attempt in {None, rollout.attempt})
    ordered = sorted(calls, key=lambda call: (call.received_at, call.call_id))
    mine = [call for call in ordered if _is_own(call, rollout)]
    replaced = superseded_by(mine, facts.delivered)
    agents = {call.call_id: call.agent or facts.agents.get(call.call_id) for call in mine}
    judged: list[tuple[Call, Choice, Sample | _Verdict]] = []
    for call in ordered:
        verdict, agent = _call_verdict(call, rollout, replaced), agents.get(call.call_id)
        for choice in call.choices or (NO_CHOICE,):
            found = verdict or _judge(call, choice)
            if isinstance(found, Sample):
                wanted = (trained_agents or {}).get(found.policy)
                if wanted is not None and agent not in wanted:
                    found = _Verdict(Reason.NOT_TRAINED_AGENT, _untrained(agent))
            judged.append((call, choice, found))
    usable = {call.call_id for call, _, found in judged if isinstance(found, Sample)}
    handled = None if rollout.phase == "evaluate" else handling(rollout, own, treatments or {})
    whole = _rollout_verdict(rollout, own, usable, weights, handled)
    rewarding = Rewarding.of(own, weights)
    samples: list[Sample] = []
    entries: list[LedgerEntry] = []
    for call, choice, found in judged:
        outcome = whole if isinstance(found, Sample) and whole is not None else found
        if isinstance(outcome, Sample):
            samples.append(outcome)
        else:
            entries.append(_entry(call, choice, outcome, rollout.step, rewarding.of_call(call.call_id)))

    transitions = transitions_of(rollout, samples, rewarding, agents)
    kept = {transition.call_id for transition in transitions}
    unmatched = tuple(r for r in own if r.call_id is not None and r.call_id not in kept)
    if handled is not None and whole is not None:
        handled = replace(handled, done=Done.DROPPED)
    answered = (call for call in mine if call.policy is not None and call.status is CallStatus.OK)
    continuations = tuple(call.continuation for call in answered)
    return Extraction(transitions, tuple(entries), unmatched, agents, continuations, handled)


def leftovers(calls: Iterable[Call], step: int | None) -> list[LedgerEntry]:
    """Ledger rows for calls that no rollout's extraction saw: orphans, and calls made after their rollout had ended. Pure."""
    entries = []
    for call in calls:
        if call.rollout_id is None:
            verdict = _orphaned(call)
        elif call.status is not CallStatus.OK:
            verdict = _Verdict(_CALL_FAULTS[call.status], call.reason)
        else:
            verdict = _Verdict(Reason.LATE, "made after its rollout had ended")
        entries += [_entry(call, choice, verdict, step, None) for choice in call.choices or (NO_CHOICE,)]
    return entries


def _own_rewards(rewards: Iterable[RewardRecord], rollout: RolloutRecord) -> list[RewardRecord]:
    """The rewards of this attempt, checked."""
    own = []
    for reward in rewards:
        if reward.rollout_id != rollout.rollout_id:
            raise ValueError(f"A reward of rollout {reward.rollout_id} was given for rollout {rollout.rollout_id}")
        if not math.isfinite(reward.value):
            raise RewardError(
                f"The reward {reward.name!r} of rollout {rollout.rollout_id} is {reward.value}",
                cure=f"It came from {reward.source}; rewards must be finite numbers",
            )
        if reward.attempt == rollout.attempt:
            own.append(reward)
    return own


def _is_own(call: Call, rollout: RolloutRecord) -> bool:
    """Whether the call was made by this attempt."""
    if call.rollout_id not in {None, rollout.rollout_id}:
        raise ValueError(f"A call of rollout {call.rollout_id} was given for rollout {rollout.rollout_id}")
    return call.rollout_id is not None and call.attempt == rollout.attempt


def _rollout_verdict(
    rollout: RolloutRecord,
    rewards: Sequence[RewardRecord],
    usable: Collection[str],
    weights: RewardWeights,
    handled: Handling | None,
) -> _Verdict | None:
    """Why nothing of the rollout is trained on, if so; `usable` are the ids of the calls that could be."""
    if rollout.phase == "evaluate":
        return _Verdict(Reason.EVALUATION, "made while measuring")
    if rollout.status is RolloutStatus.RUNNING:
        return _Verdict(Reason.ROLLOUT_UNFINISHED, "the rollout is still running")
    if handled is not None and handled.done is Done.DROPPED:
        unrewarded = handled.kind is FailureKind.UNREWARDED
        return _Verdict(Reason.NO_REWARD if unrewarded else Reason.ROLLOUT_FAILED, handled.words)
    words = ""
    if not rewards:
        words = "the store holds no reward of this attempt"
    elif not any(reward.call_id is None or reward.call_id in usable for reward in rewards):
        words = "its only rewards are for calls that give no transition"
    elif lacking := weights.lacking(reward.name for reward in rewards):
        words = f"rewards.weights has no weight for {', '.join(map(repr, lacking))}"
    if not words:
        return None
    return _Verdict(Reason.NO_REWARD, f"{words}: {rollout.error}" if rollout.error else words)


def _call_verdict(call: Call, rollout: RolloutRecord, replaced: Mapping[str, str]) -> _Verdict | None:
    """Why no choice of the call is a transition, if so."""
    if call.rollout_id is None:
        return _orphaned(call)
    if call.attempt != rollout.attempt:
        return _Verdict(Reason.OTHER_ATTEMPT, f"made by attempt {call.attempt}, not {rollout.attempt}")
    if call.status is not CallStatus.OK:
        return _Verdict(_CALL_FAULTS[call.status], call.reason)
    if call.policy is None:
        return _other_model(call)
    if (winner := replaced.get(call.call_id)) is not None:
        return _Verdict(Reason.SUPERSEDED, f"the request was repeated as call {winner}")
    return None


def _orphaned(call: Call) -> _Verdict:
    """Of a call that named no rollout: a judge's, or one that could have been trained on."""
    if call.policy is None and call.status is CallStatus.OK:
        return _other_model(call)
    return _Verdict(Reason.ORPHAN, "the call named no rollout")


def _other_model(call: Call) -> _Verdict:
    return _Verdict(Reason.NOT_TRAINED_POLICY, f"{call.model!r} is served by {call.endpoint}, which is not trained")


def _judge(call: Call, choice: Choice) -> Sample | _Verdict:
    """The choice's tokens, or what they lack."""
    ids, logprobs = choice.token_ids, choice.logprobs
    if not call.prompt_ids or ids is None:
        missing = "sampled" if call.prompt_ids else "prompt"
        return _Verdict(Reason.NO_TOKEN_IDS, f"{call.endpoint} did not say the {missing} token ids")
    if not ids:
        return _Verdict(Reason.EMPTY_ACTION, "no token was sampled")
    if logprobs is None or len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs)):
        return _Verdict(Reason.NO_LOGPROBS, f"{call.endpoint} gave {_logprob_fault(ids, logprobs)}")
    if call.policy is None or call.policy_version is None:
        return _Verdict(Reason.NOT_TRAINED_POLICY, f"{call.endpoint} did not say which version of the policy answered")
    return Sample(call, choice.index, call.policy, call.policy_version, call.prompt_ids, ids, logprobs)


def _logprob_fault(ids: Sequence[int], logprobs: Sequence[float] | None) -> str:
    """What is wrong with log-probabilities that cannot be used."""
    if logprobs is None:
        return "no log-probabilities"
    if len(logprobs) != len(ids):
        return f"{len(logprobs)} log-probabilities for {len(ids)} ids"
    return "a log-probability that is not a finite number"


def _untrained(agent: str | None) -> str:
    """Why a call of that agent is not trained on, in words."""
    return "the call is of no known agent" if agent is None else f"the agent {agent!r} is not trained"


def _entry(call: Call, choice: Choice, verdict: _Verdict, step: int | None, reward: float | None) -> LedgerEntry:
    """The ledger's row for a choice that is no transition."""
    return LedgerEntry(
        call_id=call.call_id,
        choice=choice.index,
        rollout_id=call.rollout_id,
        attempt=call.attempt,
        step=step,
        fate=fate_of(verdict.reason),
        reason=verdict.reason,
        detail=verdict.detail,
        tokens=len(choice.token_ids or ()),
        reward=reward,
    )
