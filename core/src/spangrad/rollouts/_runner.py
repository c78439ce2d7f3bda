"""Running many rollouts of one agent at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad._latest import Latest
from spangrad.capture import deliver_spans
from spangrad.errors import ConfigError
from spangrad.gateway import Gateway
from spangrad.rollouts._agents import Agent
from spangrad.rollouts._attempt import AttemptRunner
from spangrad.rollouts._group_judging import GroupJudging
from spangrad.rollouts._job import RolloutJob, RolloutResult
from spangrad.rollouts._judges import Judges
from spangrad.rollouts._lanes import Lanes
from spangrad.rollouts._process_environment import clients_pointed_at
from spangrad.rollouts._scoring import RewardFunction
from spangrad.spans import from_readable
from spangrad.store import Store
from spangrad.transitions import FailurePolicies

_MOST_PAST: Final = 4096
"""Of how many ended rollouts spans are still taken: those that ended last."""


class Runner:
    """Runs an agent on tasks and records what comes of it.

    Async agents share one event loop in a thread of its own, plain functions get a thread and commands a process per rollout.
    An agent that raises, hangs, calls no model or gives no usable reward ends its own rollout; the others go on.

    As a context manager it keeps its loop and the process's OPENAI_* variables from one `run` to the next; a `run` outside
    does so for itself. Integrations are attached by whoever holds the plug-ins (`Plugins.attached`).

    Args:
        agent: what is run.
        judges: give rewards once the agent has ended, which add to those given while it ran; a reward function alone will
            do. With None, what the agent returns is the reward, unless the rollout was rewarded while it ran.
        gateway: the running server the agents call.
        store: where everything is recorded.
        concurrency: rollouts under way at once.
        timeout: seconds an agent may take, and after it each judge; None does not limit.
        failures: what is done about rollouts that fail: another attempt, or a penalty. What is dropped or kept is decided
            where transitions are made of them.

    Raises:
        ConfigError: a number that cannot be.
    """

    def __init__(
        self,
        agent: Agent,
        judges: Judges | RewardFunction | None,
        gateway: Gateway,
        store: Store,
        *,
        concurrency: int,
        timeout: float | None,
        failures: FailurePolicies | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}", cure="At least one rollout must be under way")
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout is {timeout}", cure="Give the agent a positive number of seconds")
        self._lanes = Lanes(workers=max(32, concurrency))
        judges = judges if isinstance(judges, Judges) else Judges(judges)
        self._failures = failures or FailurePolicies()
        self._attempts = AttemptRunner(agent, judges, gateway, store, self._lanes, timeout, self._failures)
        self._compare = GroupJudging(judges.group, judges, store, timeout, self._failures) if judges.group else None
        self._concurrency = concurrency
        self._running: set[str] = set()
        """Ids of rollouts under way."""
        self._past: Latest[str] = Latest(_MOST_PAST)
        self._ended: Latest[tuple[str, int]] = Latest(_MOST_PAST)
        self._users = 0
        self._open = ExitStack()

    @property
    def abandoned(self) -> int:
        """Agents and reward functions that would not stop when their time was over and still hold a thread."""
        return self._lanes.abandoned

    @property
    def late(self) -> Mapping[str, int]:
        """Calls, spans and rewards that came when their attempt had ended, so far; none of them counts for anything else."""
        gateway = self._attempts.gateway.late.counts()
        return {kind: count + gateway[kind] for kind, count in self._attempts.late.counts().items()}

    async def run(
        self, jobs: Iterable[RolloutJob], *, on_result: Callable[[RolloutResult], None] = lambda _: None
    ) -> list[RolloutResult]:
        """Runs the jobs and returns their results in the same order.

        Args:
            jobs: what to run.
            on_result: called on this event loop as each rollout ends, or its group has been judged.

        Raises:
            StoreError: something could not be recorded; what still ran has been stopped.
            asyncio.CancelledError: the caller was cancelled (Ctrl-C); what still ran has been stopped and recorded as lost.
        """
        with self:
            limit = asyncio.Semaphore(self._concurrency)
            jobs = list(jobs)
            rollouts = [asyncio.create_task(self._rollout(job, limit)) for job in jobs]
            members: dict[str, list[int]] = {}
            for index, job in enumerate(jobs):
                # Without a judge that compares them, each rollout is settled by itself, as soon as it has ended.
                members.setdefault(job.rollout_id if self._compare is None else job.group_id, []).append(index)
            groups = [
                asyncio.create_task(self._settled([rollouts[index] for index in indices], on_result))
                for indices in members.values()
            ]
            tasks = [*rollouts, *groups]
            try:
                settled = await asyncio.gather(*groups)
                order = [index for indices in members.values() for index in indices]
                results = dict(zip(order, (result for group in settled for result in group), strict=True))
                return [results[index] for index in range(len(jobs))]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _settled(
        self, rollouts: Sequence[asyncio.Task[RolloutResult]], on_result: Callable[[RolloutResult], None]
    ) -> list[RolloutResult]:
        """The results of rollouts that are settled together, once all of them have ended."""
        results: list[RolloutResult] = []
        try:
            results += [await rollout for rollout in rollouts]
        except asyncio.CancelledError:
            if self._compare is not None:
                ended = [one for one in rollouts if one.done() and not one.cancelled() and one.exception() is None]
                self._compare.abandon([one.result() for one in ended])
            raise
        if self._compare is not None:
            results = await self._compare.settle(results)
        for result in results:
            on_result(result)
        return results

    async def _rollout(self, job: RolloutJob, limit: asyncio.Semaphore) -> RolloutResult:
        async with limit:
            self._running.add(job.rollout_id)
            try:
                result = await self._attempt(job, job.attempt)
                while self._failures.retries(result.record, lost=job.lost):
                    result = await self._attempt(job, result.record.attempt + 1)
                return result
            finally:
                self._past.add(job.rollout_id)
                self._running.discard(job.rollout_id)

    async def _attempt(self, job: RolloutJob, attempt: int) -> RolloutResult:
        try:
            return await self._attempts.run(job, attempt)
        finally:
            self._ended.add((job.rollout_id, attempt))

    def __enter__(self) -> Self:
        if self._users == 0:
            with ExitStack() as stack:
                stack.callback(self._attempts.judges.close)
                stack.callback(self._lanes.close)
                stack.enter_context(deliver_spans(self._keep_spans))
                stack.enter_context(clients_pointed_at(self._attempts.gateway.base_url))
                self._open = stack.pop_all()
        self._users += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0:
            self._open.close()

    def _keep_spans(self, spans: Sequence[ReadableSpan]) -> None:
        """Stores the spans of this runner's rollouts; the process may run others, and code outside of any."""
        own = [span for span in spans if self._is_own((span.attributes or {}).get(semconv.ROLLOUT_ID))]
        if own:
            ended = [_attempt_of(span) in self._ended for span in own]
            self._attempts.late.add("spans", sum(ended))
            self._attempts.store.add_spans([from_readable(span) for span in own])

    def _is_own(self, rollout_id: object) -> bool:
        return rollout_id in self._running or rollout_id in self._past


def _attempt_of(span: ReadableSpan) -> tuple[object, object]:
    """Whose the span says it is."""
    attributes = span.attributes or {}
    return attributes.get(semconv.ROLLOUT_ID), attributes.get(semconv.ATTEMPT)
