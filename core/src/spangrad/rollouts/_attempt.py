"""One attempt at a rollout: run the agent, judge what it did, record both."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from spangrad.capture import (
    GivenReward,
    LateResults,
    RewardDoor,
    RewardList,
    Rollout,
    RolloutScope,
    child_environment,
    end_work,
    flush_spans,
    is_infrastructure,
    use_scope,
)
from spangrad.errors import InfrastructureError, RewardError
from spangrad.gateway import Gateway, RolloutTally
from spangrad.rollouts._agents import Agent, CommandAgent
from spangrad.rollouts._command import run_command
from spangrad.rollouts._failure import blocked, failure, no_call
from spangrad.rollouts._job import RolloutJob, RolloutResult
from spangrad.rollouts._judges import Judged, Judges
from spangrad.rollouts._lanes import Lanes
from spangrad.rollouts._length_reward import length_reward
from spangrad.rollouts._loop_thread import Outcome
from spangrad.rollouts._process_environment import without_proxy
from spangrad.rollouts._rule_rewards import rule_rewards
from spangrad.rollouts.judging import FinishedRollout
from spangrad.rollouts.rules import Derived
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store
from spangrad.transitions import FailurePolicies


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an attempt ended, before it is written down."""

    status: RolloutStatus
    error: str = ""
    output: Any = None
    judged: tuple[Judged, ...] = ()
    """Rewards that came of the output."""
    derived: Derived = field(default_factory=Derived)
    """Rewards of calls that rules gave."""


@dataclass(frozen=True)
class AttemptRunner:
    """Runs attempts of one agent; holds what they all share."""

    agent: Agent
    judges: Judges
    gateway: Gateway
    store: Store
    lanes: Lanes
    timeout: float | None
    """Seconds the agent may take, and again each judge."""
    failures: FailurePolicies = field(default_factory=FailurePolicies)
    late: LateResults = field(default_factory=LateResults)
    """Counts what comes when its attempt has ended."""

    async def run(self, job: RolloutJob, attempt: int) -> RolloutResult:
        """Runs one attempt to its end and records it; whatever the agent does, this returns.

        Raises:
            StoreError: it cannot be recorded.
            GatewayError: the attempt was run before, or the gateway is not running.
            asyncio.CancelledError: the caller was cancelled; the attempt is recorded as lost.
        """
        orphans = self.gateway.orphan_calls
        access = self.gateway.open_rollout(job.rollout_id, attempt, sampling=job.sampling)
        given = RewardList(job.rollout_id, late=self.late)
        door = given.door()
        scope = RolloutScope(
            rollout_id=job.rollout_id,
            attempt=attempt,
            task_id=job.task.task_id,
            base_url=access.base_url,
            api_key=access.api_key,
            gateway_url=self.gateway.base_url,
            reward_sink=door,
        )
        record = _running(job, attempt)
        try:
            await asyncio.to_thread(self.store.save_rollout, record)
            ending = await self._play(job, scope, given, door, orphans)
            return await asyncio.to_thread(self._record, job, record, ending, given.close())
        except asyncio.CancelledError:
            # Nothing may be awaited any more, so this one write happens on the loop's own thread.
            lost = _Ending(RolloutStatus.LOST, "The run was interrupted before the rollout ended")
            self._record(job, record, lost, given.close())
            raise
        finally:
            if self.gateway.remembers(job.rollout_id, attempt):  # judging may outlast a thousand other attempts
                self.gateway.close_rollout(job.rollout_id, attempt, final=True)

    async def _play(
        self, job: RolloutJob, scope: RolloutScope, given: RewardList, door: RewardDoor, orphans: int
    ) -> _Ending:
        """How the agent ends, and what it is judged.

        Args:
            job: what is run.
            scope: the attempt.
            given: its rewards.
            door: by which the agent gives them.
            orphans: how many calls without a rollout there had been before.
        """

        def end() -> None:
            """The one moment in which an attempt ends that does not end by itself: nothing of it is taken from here on."""
            door.shut()
            self.gateway.close_rollout(scope.rollout_id, scope.attempt, final=True)

        try:
            outcome = await self._run_agent(job, scope, end)
        finally:
            door.shut()
            end_work(
                scope
            )  # whatever the agent left open ends with it, and is delivered before the rollout is recorded
        closed = self.gateway.close_rollout(scope.rollout_id, scope.attempt, final=outcome.error is not None)
        tally = await asyncio.wrap_future(closed)
        if (failed := self._failed(outcome, tally, orphans)) is not None:
            return failed
        return await self._judged(job, finished_rollout(job, scope.attempt, outcome.value), scope, given)

    def _failed(self, outcome: Outcome, tally: RolloutTally, orphans: int) -> _Ending | None:
        """How an attempt ends of which there is nothing to judge; None for any other."""
        if outcome.blocked_by:
            return _Ending(RolloutStatus.INFRASTRUCTURE, blocked("The agent", outcome.blocked_by))
        if outcome.timed_out:
            ending = _Ending(RolloutStatus.TIMED_OUT, self._still_running(outcome))
        elif outcome.error is not None:
            status = RolloutStatus.INFRASTRUCTURE if is_infrastructure(outcome.error) else RolloutStatus.FAILED
            ending = _Ending(status, failure("The agent", outcome.error))
        elif tally.calls == 0:
            ending = _Ending(RolloutStatus.NO_CALL, no_call(self.gateway.orphan_calls - orphans), outcome.value)
        elif tally.sampled == 0:
            what = f"The agent ended, and none of its {tally.calls} calls of the model was answered with a token"
            ending = _Ending(RolloutStatus.NO_CALL, what, outcome.value)
        else:
            return None
        if not tally.broken:
            return ending
        error = f"{ending.error}; its last answer was an error of the server: {tally.broken}"
        return replace(ending, status=RolloutStatus.INFRASTRUCTURE, error=error)

    def _still_running(self, outcome: Outcome) -> str:
        if outcome.blocking:
            return f"The agent ran out of time, and blocked the event loop of all async agents ({outcome.blocking})"
        return f"The agent was still running after {self.timeout:g} seconds"

    async def _judged(
        self, job: RolloutJob, rollout: FinishedRollout, scope: RolloutScope, given: RewardList
    ) -> _Ending:
        """How an attempt ends whose agent ended by itself; one that the group's judge has still to see goes on running."""
        judged: tuple[Judged, ...] = ()
        derived = Derived()
        rules = () if job.phase == "evaluate" else self.judges.rules  # what is measured is the task, not the way there
        try:
            derived = await rule_rewards(
                rules, self.store, scope.rollout_id, scope.attempt, lanes=self.lanes, limit=self.timeout
            )
            judged = await self.judges.judge(rollout, scope, given, self.lanes, self.timeout)
            if job.phase != "evaluate":
                overlong = self.judges.overlong
                judged += await length_reward(overlong, self.store, scope.rollout_id, scope.attempt)
            by_rules = (rule.name for rule, _, _ in derived.rewards)
            self.judges.check_names([*(name for name, _, _ in judged), *given.names, *by_rules])
        except RewardError as error:
            return _Ending(RolloutStatus.NO_REWARD, str(error), rollout.output, judged, derived)
        except InfrastructureError as error:
            return _Ending(RolloutStatus.INFRASTRUCTURE, str(error), rollout.output, judged, derived)
        status = RolloutStatus.SUCCEEDED if self.judges.group is None else RolloutStatus.RUNNING
        return _Ending(status, "", rollout.output, judged, derived)

    async def _run_agent(self, job: RolloutJob, scope: RolloutScope, end: Callable[[], None]) -> Outcome:
        """How the agent ends; `end` is called when it is told to."""
        data = copy.deepcopy(job.task.data)  # an agent may change its task, and other rollouts share it
        agent = self.agent
        if isinstance(agent, CommandAgent):
            return await self._run_command(agent, data, scope, end)
        arguments = (data, Rollout(scope)) if agent.wants_rollout else (data,)
        with use_scope(scope):
            return await self.lanes.call(
                lambda: agent.function(*arguments),
                asynchronous=agent.asynchronous,
                limit=self.timeout,
                on_stop=end,
                name=f"The agent of rollout {scope.rollout_id}",
            )

    async def _run_command(
        self, agent: CommandAgent, data: Any, scope: RolloutScope, end: Callable[[], None]
    ) -> Outcome:
        # In a thread, because the first time it asks the plug-ins.
        environment = await asyncio.to_thread(child_environment, scope) | without_proxy(scope.gateway_url)
        try:
            ended = await run_command(agent, data, environment, limit=self.timeout, on_stop=end)
        except OSError as error:
            return Outcome(error=error)
        if ended.status is None:
            return Outcome(timed_out=True)
        if ended.status != 0:
            said = f": {ended.stderr}" if ended.stderr else " and wrote nothing to its standard error"
            kind = InfrastructureError if ended.status == os.EX_TEMPFAIL else CommandError
            return Outcome(error=kind(f"{agent.name} exited with status {ended.status}{said}"))
        return Outcome(value=ended.output)

    def _record(
        self, job: RolloutJob, record: RolloutRecord, ending: _Ending, given: tuple[GivenReward, ...]
    ) -> RolloutResult:
        flush_spans()
        now = time.time()
        owner = (job.rollout_id, record.attempt)
        rewards = [
            *(RewardRecord(*owner, r.call_id, r.name, r.value, "scope", r.at) for r in given),
            *(RewardRecord(*owner, None, name, value, source, now) for name, value, source in ending.judged),
            *(
                RewardRecord(*owner, call, rule.name, value, rule.source, now)
                for rule, call, value in ending.derived.rewards
            ),
        ]
        ended = replace(
            record,
            status=ending.status,
            error=ending.error,
            output=_as_json(ending.output),
            finished_at=None if ending.status is RolloutStatus.RUNNING else now,
        )
        if (penalty := self.failures.penalty(ended, now)) is not None:
            rewards.append(penalty)
        for reward in rewards:
            self.store.add_reward(reward)
        self.store.save_rollout(ended)
        kept = tuple(self.store.rewards(*owner))  # with those that came over HTTP
        return RolloutResult(job, ended, ending.output, kept, self.judges.weights, ending.derived.unlinked)


def finished_rollout(job: RolloutJob, attempt: int, output: Any) -> FinishedRollout:
    """What judges are told of an attempt."""
    return FinishedRollout(job.rollout_id, attempt, job.task.task_id, job.task.data, output)


class CommandError(Exception):
    """A command exited with a status other than 0."""


def _running(job: RolloutJob, attempt: int) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=job.rollout_id,
        attempt=attempt,
        task_id=job.task.task_id,
        group_id=job.group_id,
        phase=job.phase,
        step=job.step,
        status=RolloutStatus.RUNNING,
        error="",
        output="",
        started_at=time.time(),
        finished_at=None,
    )


def _as_json(output: Any) -> str:
    if output is None:
        return ""
    try:
        return json.dumps(output)
    except (TypeError, ValueError, RecursionError):
        return ""
