"""What every store does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from spangrad.spans import Span
from spangrad.transitions import Call, LedgerEntry, RewardRecord, RolloutRecord, RolloutStatus


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
        """Queues a call for the next commit; the future is done when it is durable.

        Never raises: what goes wrong, writing the same call id again among it, is the future's exception. The future cannot
        be cancelled: a call happened, whether or not somebody still waits for it. A callback of it must not wait for the store.
        """
        ...

    def calls(self, rollout_id: str | None, attempt: int | None = None) -> list[Call]:
        """Calls of a rollout (None: the orphans), in the order they were received."""
        ...

    def add_reward(self, reward: RewardRecord) -> None:
        """Adds a reward to those given before.

        Raises:
            RewardError: its value is no finite number.
        """
        ...

    def rewards(self, rollout_id: str, attempt: int | None = None) -> list[RewardRecord]:
        """Rewards of a rollout and its calls, in the order they were given."""
        ...

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Adds spans; one that the same rollout has already, by trace id and span id, is replaced."""
        ...

    def submit_spans(self, spans: Iterable[Span]) -> Future[None]:
        """The same without waiting, as `submit_call` does it."""
        ...

    def spans(self, rollout_id: str) -> list[Span]:
        """Spans of all attempts of a rollout, by start, then by span id."""
        ...

    def add_ledger(self, entries: Sequence[LedgerEntry]) -> None:
        """Sets what became of calls; a later entry for the same call and choice replaces the earlier."""
        ...

    def ledger(self, *, rollout_id: str | None = None, step: int | None = None) -> list[LedgerEntry]:
        """Entries of a rollout, of a step, of both or of all, in the order they were set."""
        ...

    def unsettled_calls(self) -> list[Call]:
        """Calls of which the ledger says nothing so far, orphans among them, in the order they were received."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Rows per table: rollouts, calls, choices, rewards, spans, ledger, notes."""
        ...

    def set_note(self, key: str, value: Any) -> None:
        """Keeps a small JSON value under a key."""
        ...

    def note(self, key: str) -> Any | None:
        """The value kept under a key; None when there is none."""
        ...

    def close(self) -> None:
        """Writes what is queued and lets go of the files; harmless when closed already. Using a closed store is an error."""
        ...
