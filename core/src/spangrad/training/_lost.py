"""Attempts whose process went away before they ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from spangrad.store import RolloutStatus, Store

GONE: Final = "The process that ran the rollout went away before it ended"


def declare_lost(store: Store) -> int:
    """Records every attempt as lost that is said to be running; gives how many there were.

    For whoever takes over a run: it must have the run's lock, and run no rollout yet, so that none of them can be running.

    Raises:
        StoreError: they cannot be recorded.
    """
    left = store.rollouts(status=RolloutStatus.RUNNING)
    for record in left:
        store.save_rollout(replace(record, status=RolloutStatus.LOST, error=GONE, finished_at=time.time()))
    return len(left)


def lost_attempts(store: Store, rollout_id: str, attempt: int) -> int:
    """How many of a rollout's attempts up to this one were lost: no fault of the rollout's, and no try that counts."""
    records = (store.rollout(rollout_id, number) for number in range(1, attempt + 1))
    return sum(record is not None and record.status is RolloutStatus.LOST for record in records)
