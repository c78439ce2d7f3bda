"""Judging the rollouts of a group against each other, once all of them have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spangrad.errors import RewardError
from spangrad.rollouts._attempt import finished_rollout
from spangrad.rollouts._job import RolloutResult
from spangrad.rollouts._judges import Judges
from spangrad.rollouts.judging import GroupJudge
from spangrad.store import RewardRecord, RolloutStatus, Store
from spangrad.transitions import FailurePolicies


@dataclass(frozen=True)
class GroupJudging:
    """Has a judge compare groups, and records what it says."""

    judge: GroupJudge
    judges: Judges
    store: Store
    limit: float | None
    """Seconds the judge may take over a group."""
    failures: FailurePolicies

    async def settle(self, group: Sequence[RolloutResult]) -> list[RolloutResult]:
        """The results of a group, in order, with the judge's rewards.

        Those that failed or lack another reward stay as they are and are not shown to the judge.

        Raises:
            StoreError: the results cannot be recorded.
            asyncio.CancelledError: the caller was cancelled; what still waited is recorded as lost.
        """
        waiting = [result for result in group if result.status is RolloutStatus.RUNNING]
        if not waiting:
            return list(group)
        try:
            settled = await self._judged(waiting)
        except asyncio.CancelledError:
            self.abandon(waiting)
            raise
        by_id = {result.record.rollout_id: result for result in settled}
        return [by_id.get(result.record.rollout_id, result) for result in group]

    def abandon(self, group: Sequence[RolloutResult]) -> None:
        """Records those that wait for the judge as lost. Not awaited: a cancelled caller may not await anything any more.

        Raises:
            StoreError: they cannot be recorded.
        """
        for result in group:
            if result.status is RolloutStatus.RUNNING:
                self._record(result, RolloutStatus.LOST, "The run was interrupted before the rollout was judged")

    async def _judged(self, waiting: Sequence[RolloutResult]) -> list[RolloutResult]:
        rollouts = [finished_rollout(result.job, result.record.attempt, result.output) for result in waiting]
        try:
            given = await self.judge.rewards(rollouts, limit=self.limit)
            self.judges.check_names([name for rewards in given for name in rewards])
        except RewardError as error:
            pairs = [(result, RolloutStatus.NO_REWARD, str(error)) for result in waiting]
            return [await asyncio.to_thread(self._record, *pair) for pair in pairs]
        return [
            await asyncio.to_thread(self._rewarded, result, rewards)
            for result, rewards in zip(waiting, given, strict=True)
        ]

    def _rewarded(self, result: RolloutResult, rewards: Mapping[str, float]) -> RolloutResult:
        record = result.record
        new = [
            RewardRecord(record.rollout_id, record.attempt, None, name, value, self.judge.name, time.time())
            for name, value in rewards.items()
        ]
        for reward in new:
            self.store.add_reward(reward)
        rewarded = replace(result, rewards=(*result.rewards, *new))
        return self._record(rewarded, RolloutStatus.SUCCEEDED, "")

    def _record(self, result: RolloutResult, status: RolloutStatus, error: str) -> RolloutResult:
        record = replace(result.record, status=status, error=error, finished_at=time.time())
        penalty = self.failures.penalty(record, time.time())
        if penalty is not None:
            self.store.add_reward(penalty)
            result = replace(result, rewards=(*result.rewards, penalty))
        self.store.save_rollout(record)
        return replace(result, record=record)
