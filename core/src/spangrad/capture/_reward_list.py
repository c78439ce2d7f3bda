"""Rewards given while a rollout runs, kept until it ends."""

from __future__ import annotations

import threading
import time
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


class RewardList:
    """A `RewardSink` that keeps what it is given; usable from any thread.

    Args:
        rollout_id: whose rewards.
        late: counts rewards that come when it takes no more.
    """

    def __init__(self, rollout_id: str, *, late: LateResults | None = None) -> None:
        self._late = late or LateResults()
        self._rollout_id = rollout_id
        self._lock = threading.Lock()
        self._rewards: list[GivenReward] = []
        self._closed = False

    def __call__(self, value: float, name: str, call_id: str | None) -> None:
        """Keeps one reward.

        Raises:
            RewardError: the rollout has ended.
        """
        with self._lock:
            if self._closed:
                self._late.add("rewards")
                raise RewardError(
                    f"Rollout {self._rollout_id} has ended, so the reward {name!r} comes too late",
                    cure="Give rewards before the rollout ends",
                )
            self._rewards.append(GivenReward(value, name, call_id))

    def __len__(self) -> int:
        return len(self._rewards)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rewards given so far."""
        with self._lock:
            return tuple(reward.name for reward in self._rewards)

    @property
    def rewards_rollout(self) -> bool:
        """Whether any of them is for the rollout as a whole."""
        with self._lock:
            return any(reward.call_id is None for reward in self._rewards)

    def close(self) -> tuple[GivenReward, ...]:
        """Takes no more; returns what there is. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            return tuple(self._rewards)
