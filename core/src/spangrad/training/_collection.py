"""Running a set of rollouts and reading their transitions out of the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spangrad.errors import AgentError, BackendError, RewardError, SpangradError
from spangrad.lightningrl import check_size
from spangrad.rollouts import RolloutJob, RolloutResult, work_of
from spangrad.rollouts.rules import derived
from spangrad.store import RolloutRecord, RolloutStatus
from spangrad.training._lost import lost_attempts
from spangrad.training._policies import serving_versions
from spangrad.training._progress import Phase
from spangrad.training._session import Session
from spangrad.transitions import (
    RULE_SOURCE,
    Call,
    Done,
    Extraction,
    LedgerEntry,
    Transition,
    continuation_figures,
    extract,
)

T = TypeVar("T")

_UNFINISHED = {RolloutStatus.RUNNING, RolloutStatus.LOST}
_JUDGED = {RolloutStatus.SUCCEEDED, RolloutStatus.NO_REWARD}


class StopRequestedError(Exception):
    """The user asked the run to stop; what is finished has been kept."""


@dataclass(frozen=True)
class Collection:
    """Rollouts that have ended, in the order of their jobs, and what was extracted from each."""

    results: tuple[RolloutResult, ...]
    extractions: tuple[Extraction, ...]
    reused: int
    """How many were already in the store from before a resume."""
    seconds: float

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """Of all rollouts, in order."""
        return tuple(t for extraction in self.extractions for t in extraction.transitions)

    @property
    def excluded(self) -> tuple[LedgerEntry, ...]:
        """Ledger rows of the calls that are no transitions."""
        return tuple(entry for extraction in self.extractions for entry in extraction.entries)

    @property
    def agents(self) -> frozenset[str | None]:
        """Agents that made calls in any of the rollouts; None among them for calls of no known agent."""
        return frozenset(agent for extraction in self.extractions for agent in extraction.agents.values())

    @property
    def continuation(self) -> dict[str, Any]:
        """How far the policies' calls went on from the tokens of earlier ones."""
        return continuation_figures(known for extraction in self.extractions for known in extraction.continuations)

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled in all their calls."""
        return sum(map(_sampled_tokens, self.extractions))

    @property
    def failed(self) -> int:
        """How many did not succeed, whatever was done about it."""
        return sum(result.status is not RolloutStatus.SUCCEEDED for result in self.results)

    def group(self, group_id: str) -> tuple[int, int]:
        """How many rollouts of the group there are, and how many of them count: were not dropped."""
        pairs = zip(self.results, self.extractions, strict=True)
        counts = [
            e.handling is None or e.handling.done is not Done.DROPPED for r, e in pairs if r.job.group_id == group_id
        ]
        return len(counts), sum(counts)

    def annotated(self, entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
        """Ledger rows of transitions, which say what was done about the failure of their rollout, if it failed."""
        by_id = {r.job.rollout_id: e for r, e in zip(self.results, self.extractions, strict=True)}
        return [by_id[entry.rollout_id].annotated(entry) if entry.rollout_id in by_id else entry for entry in entries]

    @property
    def statuses(self) -> Counter[RolloutStatus]:
        """How the rollouts ended."""
        return Counter(result.status for result in self.results)

    @property
    def rules(self) -> dict[str, Any]:
        """What rules did: how many rewards each gave, and how often one was met without a call to give it to."""
        given = (reward for result in self.results for reward in result.rewards)
        counts = Counter(reward.name for reward in given if reward.source.startswith(RULE_SOURCE))
        return {"rewards": dict(sorted(counts.items())), "unlinked": sum(result.unlinked for result in self.results)}

    @property
    def rewards(self) -> list[float]:
        """Rewards of the rollouts that succeeded."""
        return _of_successes(self.results)


def _of_successes(results: Iterable[RolloutResult]) -> list[float]:
    ended = (result for result in results if result.status is RolloutStatus.SUCCEEDED)
    return [result.reward for result in ended if result.reward is not None]


async def collect(
    session: Session,
    jobs: Sequence[RolloutJob],
    phase: Phase,
    stop: asyncio.Event,
    *,
    earlier: Collection | None = None,
) -> Collection:
    """Runs the jobs, except those that a previous process has finished with the present policy.

    Args:
        session: the run's.
        jobs: what to run.
        phase: shows how far it is.
        stop: ends it.
        earlier: rollouts of the same step, which come before these in what is returned.

    Raises:
        StopRequestedError: `stop` was set meanwhile.
        RewardError: a reward is too large to reckon with.
        SpangradError: not one rollout succeeded; the message gives the commonest cause.
    """
    begun = time.monotonic()
    before = earlier or Collection((), (), 0, 0.0)
    found = {job.rollout_id: _finished(session, job) for job in jobs}
    results = {job_id: result for job_id, result in found.items() if result is not None}
    reused = len(results)
    tokens = 0
    extractions = {job_id: extraction_of(session, result.record) for job_id, result in results.items()}
    phase.advance(reused)

    def on_result(result: RolloutResult) -> None:
        nonlocal tokens
        results[result.job.rollout_id] = result
        extraction = extractions[result.job.rollout_id] = extraction_of(session, result.record)
        tokens += _sampled_tokens(extraction)
        rewards = _of_successes((*before.results, *results.values()))
        mean = f"{sum(rewards) / len(rewards):.2f}" if rewards else "-"
        phase.advance(1, {"reward": mean, "tok/s": f"{tokens / (time.monotonic() - begun):.0f}"})

    missing = [_next_attempt(session, job) for job in jobs if job.rollout_id not in results]
    await until_stopped(session.runner.run(missing, on_result=on_result), stop)
    collection = Collection(
        results=(*before.results, *(results[job.rollout_id] for job in jobs)),
        extractions=(*before.extractions, *(extractions[job.rollout_id] for job in jobs)),
        reused=before.reused + reused,
        seconds=before.seconds + time.monotonic() - begun,
    )
    _check_any_succeeded(collection)
    return collection


async def until_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """The work's result; when `stop` is set first, the work is cancelled and waited for.

    Raises:
        StopRequestedError: it was.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise StopRequestedError
    finally:
        for pending in (task, stopping):
            pending.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


def _finished(session: Session, job: RolloutJob) -> RolloutResult | None:
    """What a previous process left of this job, if it is whole and was sampled by the present policy."""
    record = session.store.rollout(job.rollout_id)
    if record is None or record.status in _UNFINISHED:
        return None
    lost = lost_attempts(session.store, record.rollout_id, record.attempt)
    if session.preparation.failures.retries(record, lost=lost):
        return None
    calls = session.store.calls(record.rollout_id, record.attempt)
    if not all(_by_the_present_policy(session, call) for call in calls):
        return None
    output = json.loads(record.output) if record.output else None
    rewards = tuple(session.store.rewards(record.rollout_id, record.attempt))
    return RolloutResult(
        job=replace(job, attempt=record.attempt),
        record=record,
        output=output,
        rewards=rewards,
        weights=session.preparation.judges.weights,
        unlinked=_unlinked(session, record),
    )


def _by_the_present_policy(session: Session, call: Call) -> bool:
    """Whether the call would be answered by the same policy now, or one of before the last step where rollouts overlap it."""
    training = session.preparation.config.training
    if call.policy is None or call.policy_version is None:
        return True
    present = serving_versions(session.preparation.config, session.backend)[call.policy]
    return present - training.updates_per_step * training.overlap <= call.policy_version <= present


def _unlinked(session: Session, record: RolloutRecord) -> int:
    """How often rules were met without a known call, in a rollout of a previous process."""
    rules = [rule for rule in session.preparation.judges.rules if rule.function is None]
    if not rules or record.phase == "evaluate" or record.status not in _JUDGED:
        return 0
    return derived(rules, work_of(session.store, record.rollout_id, record.attempt), {}).unlinked


def _next_attempt(session: Session, job: RolloutJob) -> RolloutJob:
    """The job as a new attempt when an earlier one was cut short."""
    record = session.store.rollout(job.rollout_id)
    if record is None:
        return job
    lost = lost_attempts(session.store, record.rollout_id, record.attempt)
    return replace(job, attempt=record.attempt + 1, lost=lost)


def extraction_of(session: Session, record: RolloutRecord) -> Extraction:
    """What the store holds of a finished rollout, sorted into transitions and the rest.

    Raises:
        RewardError: a reward is so large that sums and means of it would overflow.
    """
    store = session.store
    rewards = store.rewards(record.rollout_id, record.attempt)
    for reward in rewards:
        check_size(reward.value, record.rollout_id)
    return extract(
        record,
        store.calls(record.rollout_id),
        rewards,
        store.spans(record.rollout_id),
        trained_agents={policy.name: policy.agents for policy in session.preparation.config.trained},
        weights=session.preparation.judges.weights,
        treatments=session.preparation.failures.treatments,
    )


def _sampled_tokens(extraction: Extraction) -> int:
    return sum(len(t.action_ids) for t in extraction.transitions) + sum(entry.tokens for entry in extraction.entries)


_CAUSES: dict[RolloutStatus, tuple[type[SpangradError], str]] = {
    RolloutStatus.NO_CALL: (
        AgentError,
        "Point the agent's client at the gateway (OPENAI_BASE_URL) and check that it calls the model",
    ),
    RolloutStatus.NO_REWARD: (RewardError, "Return a finite number from the agent or the reward function"),
    RolloutStatus.TIMED_OUT: (AgentError, "Raise rollouts.timeout, or find out what the agent waits for"),
    RolloutStatus.FAILED: (AgentError, "Run the agent on one task by hand to see the whole error"),
    RolloutStatus.INFRASTRUCTURE: (
        BackendError,
        "Once that is mended, start the run again with --resume",
    ),
    RolloutStatus.LOST: (BackendError, "Start the run again with --resume"),
}


def _check_any_succeeded(collection: Collection) -> None:
    """Training or measuring on nothing but failures would only hide their cause."""
    failed = [result for result in collection.results if result.status is not RolloutStatus.SUCCEEDED]
    kept = (e.handling is not None and e.handling.done is not Done.DROPPED for e in collection.extractions)
    if len(failed) < len(collection.results) or any(kept):
        return
    status = collection.statuses.most_common(1)[0][0]
    causes = Counter(result.error for result in failed if result.status is status)
    error, cure = _CAUSES[status]
    raise error(
        f"All {len(failed)} rollouts failed; most often ({status.value}): {causes.most_common(1)[0][0]}", cure=cure
    )
