"""Who judges the rollouts of a run once their agents have ended."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spangrad.capture import RewardList, Rollout, RolloutScope, named_rewards, reward_value
from spangrad.errors import InfrastructureError, RewardError
from spangrad.rollouts._failure import blocked, failure
from spangrad.rollouts._lanes import Lanes
from spangrad.rollouts._overlong import Overlong
from spangrad.rollouts._scoring import RewardFunction
from spangrad.rollouts.judging import FinishedRollout, GroupJudge, ModelJudge, RewardSource
from spangrad.rollouts.rules import Rule
from spangrad.transitions import RewardWeights

Judged = tuple[str, float, str]
"""A reward's name, its value, and who gave it."""


@dataclass(frozen=True)
class Judges:
    """All that gives rewards after the agent has ended. Without any, what the agent returned is the reward."""

    function: RewardFunction | None = None
    sources: Sequence[RewardSource] = ()
    group: GroupJudge | None = None
    """Scores the rollouts of a group against each other, once all of them have ended."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    rules: Sequence[Rule] = ()
    """Reward calls by what the rollout's spans and calls show, in addition to all else; they never stand in for it."""
    overlong: Overlong | None = None
    """Rewards the rollout for its length, likewise."""

    async def judge(
        self, rollout: FinishedRollout, scope: RolloutScope, given: RewardList, lanes: Lanes, limit: float | None
    ) -> tuple[Judged, ...]:
        """The rewards of a rollout whose agent has ended by itself, those of the group's judge aside.

        Args:
            rollout: what is judged.
            scope: the rollout's.
            given: the rewards it was given while it ran, which may be all there are.
            lanes: where the reward function runs.
            limit: seconds that each judge may take; None does not limit.

        Raises:
            RewardError: one of the judges gave no usable reward, or there is none at all.
            InfrastructureError: the reward function was kept from going on by another agent.
        """
        judged: list[Judged] = []
        if self.function is not None or not (self.sources or self.group):
            judged += await self._by_function(rollout, scope, given, lanes, limit)
        for source in self.sources:
            rewards = await source.rewards(rollout, limit=limit)
            judged += [(name, value, source.name) for name, value in rewards.items()]
        return tuple(judged)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuses rewards that have no weight where others have one.

        Raises:
            RewardError: one of the names lacks a weight.
        """
        if lacking := self.weights.lacking(names):
            raise RewardError(
                f"rewards.weights has no weight for the reward {', '.join(map(repr, lacking))}",
                cure="Give every reward a weight; 0 records it without counting it",
            )

    def asking(self, gateway: str, key: str) -> Judges:
        """The same judges, those that are a route of the run's gateway told where it is.

        Args:
            gateway: its URL, `/v1` included.
            key: lets them call it.
        """
        sources = [one.asking(gateway, key) if isinstance(one, ModelJudge) else one for one in self.sources]
        return replace(self, sources=tuple(sources), group=self.group and self.group.asking(gateway, key))

    def close(self) -> None:
        """Ends processes that judge."""
        for source in self.sources:
            source.close()

    async def _by_function(
        self, rollout: FinishedRollout, scope: RolloutScope, given: RewardList, lanes: Lanes, limit: float | None
    ) -> list[Judged]:
        """The rewards of the reward function, or of what the agent returned where there is none."""
        if self.function is None:
            return [] if given.rewards_rollout else _returned(rollout.output, given)
        door = given.door()
        own = replace(scope, reward_sink=door)
        try:
            value = await _called(self.function, rollout, own, lanes, limit=limit, on_stop=door.shut)
        finally:
            door.shut()
        if value is None and (given or self.sources or self.group):  # then those rewards are all there is to be
            return []
        giver = f"What the reward function {self.function.name!r} returned"
        return [(name, number, "reward_function") for name, number in named_rewards(value, giver=giver).items()]


def _returned(output: Any, given: RewardList) -> list[Judged]:
    """What the agent returned as the reward; nothing where it is none, but calls have been rewarded."""
    try:
        value = reward_value(output, giver="Nobody gave a reward, and what the agent returned")
    except RewardError:
        if given:
            return []
        raise
    return [("reward", value, "return_value")]


async def _called(
    function: RewardFunction,
    rollout: FinishedRollout,
    scope: RolloutScope,
    lanes: Lanes,
    *,
    limit: float | None,
    on_stop: Callable[[], None],
) -> Any:
    """What a reward function returns.

    Raises:
        RewardError: it raised, or did not end in time.
        InfrastructureError: another agent kept it from going on.
    """
    arguments = function.arguments(task=copy.deepcopy(rollout.task), output=rollout.output, rollout=Rollout(scope))
    outcome = await lanes.call(
        lambda: function.function(**arguments),
        asynchronous=function.asynchronous,
        limit=limit,
        on_stop=on_stop,
        name=f"The reward function of rollout {scope.rollout_id}",
    )
    if outcome.blocked_by:
        raise InfrastructureError(blocked(f"The reward function {function.name!r}", outcome.blocked_by))
    if outcome.timed_out:
        raise RewardError(f"The reward function {function.name!r} was still running after {limit:g} seconds")
    if outcome.error is not None:
        raise RewardError(failure(f"The reward function {function.name!r}", outcome.error))
    return outcome.value
