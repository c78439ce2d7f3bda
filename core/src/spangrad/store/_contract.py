"""What every store does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from spangrad.spans import Span
from spangrad.store._records import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions import Call, LedgerEntry


class Store(Protocol):
    """Durable memory of a run. Safe to use from any thread; a write has reached the disk when it returns.

    Every method raises `StoreError` when the store cannot be read or written, saying why (disk full, read-only) and what to do.
    """

    def save_rollout(self, record: RolloutRecord) -> None:
        """Inserts the attempt, or replaces what is known of it."""
        ...

    def rollout(self, rollout_id: str, attempt: int | None = None) -> RolloutRecord | None:
        """That attempt, or the latest one."""
        ...

    def rollouts(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        status: RolloutStatus | None = None,
        limit: int | None = None,
    ) -> list[RolloutRecord]:
        """Attempts in the order they were started; the latest `limit` of them, if given."""
        ...

    def submit_call(self, call: Call) -> Future[None]:
        """Queues a call for the next commit; the future is done when it is durable. Writing the same call id again is an error."""
        ...

    def calls(self, rollout_id: str | None, attempt: int | None = None) -> list[Call]:
        """Calls of a rollout (None: the orphans), in the order they were received."""
        ...

    def add_reward(self, reward: RewardRecord) -> None: ...

    def rewards(self, rollout_id: str, attempt: int | None = None) -> list[RewardRecord]: ...

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Adds spans; a span id seen before is replaced."""
        ...

    def spans(self, rollout_id: str) -> list[Span]: ...

    def add_ledger(self, entries: Sequence[LedgerEntry]) -> None:
        """Sets what became of calls; a later entry for the same call and choice replaces the earlier."""
        ...

    def ledger(self, *, rollout_id: str | None = None, step: int | None = None) -> list[LedgerEntry]: ...

    def counts(self) -> Mapping[str, int]:
        """Rows per table."""
        ...

    def set_note(self, key: str, value: Any) -> None:
        """Keeps a small JSON value under a key."""
        ...

    def note(self, key: str) -> Any | None: ...

    def close(self) -> None:
        """Writes what is queued and lets go of the files."""
        ...
