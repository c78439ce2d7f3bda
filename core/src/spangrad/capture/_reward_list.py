"""Rewards given while a rollout runs, kept until it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spangrad.capture._late_results import LateResults
from spangrad.errors import RewardError


@dataclass(frozen=True, slots=True)
class GivenReward:
    """One validated reward."""

    value: float
    name: str
    call_id: str | None
    at: float = field(default_factory=time.time)
    """Unix seconds."""


class RewardDoor:
    """A `RewardSink` that can be shut while the list behind it goes on taking rewards; usable from any thread.

    Args:
        rewards: gets what comes in.
    """

    def __init__(self, rewards: RewardList) -> None:
        self._rewards = rewards
        self._open = True

    def __call__(self, value: float, name: str, call_id: str | None) -> None:
        """Lets one reward in.

        Raises:
            RewardError: it is shut, or the rollout has ended.
        """
        self._rewards.give(GivenReward(value, name, call_id), lambda: self._open)

    def shut(self) -> None:
        """Lets nothing in any more: when this has returned, no reward is on its way. Shutting it twice is harmless."""
        with self._rewards.lock:
            self._open = False


class RewardList:
    """A `RewardSink` that keeps what it is given; usable from any thread.

    Whoever may give rewards during a part of the rollout only, its agent or its reward function, gets a `door`.

    Args:
        rollout_id: whose rewards.
        late: counts rewards that come when they are not taken any more.
    """

    def __init__(self, rollout_id: str, *, late: LateResults | None = None) -> None:
        self.lock = threading.Lock()
        self._late = late or LateResults()
        self._rollout_id = rollout_id
        self._rewards: list[GivenReward] = []
        self._closed = False

    def __call__(self, value: float, name: str, call_id: str | None) -> None:
        """Keeps one reward.

        Raises:
            RewardError: the rollout has ended.
        """
        self.give(GivenReward(value, name, call_id), lambda: True)

    def __len__(self) -> int:
        return len(self._rewards)

    def give(self, reward: GivenReward, is_open: Callable[[], bool]) -> None:
        """Keeps a reward, if the way it came by is open and the list is.

        Raises:
            RewardError: one of them is not.
        """
        with self.lock:
            if self._closed or not is_open():
                self._late.add("rewards")
                raise RewardError(
                    f"Rollout {self._rollout_id} has ended, so the reward {reward.name!r} comes too late",
                    cure="Give rewards before the rollout ends",
                )
            self._rewards.append(reward)

    def door(self) -> RewardDoor:
        """A way in that can be shut by itself."""
        return RewardDoor(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rewards given so far."""
        with self.lock:
            return tuple(reward.name for reward in self._rewards)

    @property
    def rewards_rollout(self) -> bool:
        """Whether any of them is for the rollout as a whole."""
        with self.lock:
            return any(reward.call_id is None for reward in self._rewards)

    def close(self) -> tuple[GivenReward, ...]:
        """Takes no more; returns what there is. Closing twice is harmless."""
        with self.lock:
            self._closed = True
            return tuple(self._rewards)
