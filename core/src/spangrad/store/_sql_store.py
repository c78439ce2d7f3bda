"""The store on an SQL database."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from sqlalchemy import Engine, Select, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from spangrad.errors import StoreError
from spangrad.spans import Span
from spangrad.store import _rows as rows
from spangrad.store import _tables as tables
from spangrad.store._writer import Write, Writer
from spangrad.transitions import Call, LedgerEntry, RewardRecord, RolloutRecord, RolloutStatus

# Made once: SQLAlchemy caches the compiled form by statement, and the writer merges rows of the same statement.
_INSERTS: Final = {table.name: insert(table) for table in tables.metadata.sorted_tables}
_REPLACED: Final = ("rollouts", "spans", "ledger", "notes")
_REPLACEMENTS: Final = {name: _INSERTS[name].prefix_with("OR REPLACE", dialect="sqlite") for name in _REPLACED}
"""Insert rows, each in place of the one with its key; of rows with one key the last counts."""
_COUNTED: Final = ("rollouts", "calls", "choices", "rewards", "spans", "ledger", "notes")


def _replacement(doing: str, table: str, new: Sequence[rows.Row]) -> Write:
    return Write(doing, ((_REPLACEMENTS[table], new),), joins=True)


class SqlStore:
    """A store whose writes all pass through one thread, and whose reads each take a connection of their own.

    Args:
        reading: engine for reading, from any thread.
        writing: engine for the writing thread, with one connection.
        where: what to call the store in messages.
        failure: makes the error that is told of an exception and what was being done.
        hopeless: whether after an exception other writes need not be tried.
    """

    def __init__(
        self,
        *,
        reading: Engine,
        writing: Engine,
        where: str,
        failure: Callable[[Exception, str], StoreError],
        hopeless: Callable[[Exception], bool],
    ) -> None:
        self._reading = reading
        self._where = where
        self._failure = failure
        self._writer = Writer(writing, failure=failure, hopeless=hopeless)
        self._process = os.getpid()
        self._closed = False
        self._submitting = threading.Lock()
        """Held while a write is queued, so that none is queued after the closing."""
        # Runs on close, when the store is forgotten, or at the end of the program: whichever comes first, and once.
        self._finalizer = weakref.finalize(self, _shut, self._writer, reading, self._process)

    def save_rollout(self, record: RolloutRecord) -> None:
        self._replace(f"save rollout {record.rollout_id}", "rollouts", [rows.rollout_row(record)])

    def rollout(self, rollout_id: str, attempt: int | None = None) -> RolloutRecord | None:
        c = tables.rollouts.c
        query = select(tables.rollouts).where(c.rollout_id == rollout_id).order_by(c.attempt.desc()).limit(1)
        if attempt is not None:
            query = query.where(c.attempt == attempt)
        found = self._read(query)[0]
        return rows.rollout_record(found[0]) if found else None

    def rollouts(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        status: RolloutStatus | None = None,
        limit: int | None = None,
    ) -> list[RolloutRecord]:
        c = tables.rollouts.c
        query = select(tables.rollouts).order_by(c.started_at.desc(), c.rollout_id.desc(), c.attempt.desc())
        for column, wanted in ((c.phase, phase), (c.step, step), (c.status, status)):
            if wanted is not None:
                query = query.where(column == str(wanted) if column is c.status else column == wanted)
        if limit is not None:
            query = query.limit(limit)
        return [rows.rollout_record(row) for row in reversed(self._read(query)[0])]

    def submit_call(self, call: Call) -> Future[None]:
        try:
            steps = (
                (_INSERTS["calls"], [rows.call_row(call)]),
                (_INSERTS["choices"], rows.choice_rows(call)),
            )
            return self._submit(Write(f"save call {call.call_id}", steps, joins=True))
        except StoreError as exc:
            return _failed(exc)

    def calls(self, rollout_id: str | None, attempt: int | None = None) -> list[Call]:
        c = tables.calls.c
        mine = [c.rollout_id == rollout_id]
        if attempt is not None:
            mine.append(c.attempt == attempt)
        found, choices = self._read(
            select(tables.calls).where(*mine).order_by(c.received_at, c.call_id),
            select(tables.choices)
            .join(tables.calls, tables.choices.c.call_id == c.call_id)
            .where(*mine)
            .order_by(tables.choices.c.position),
        )
        return rows.call_records(found, choices)

    def add_reward(self, reward: RewardRecord) -> None:
        steps = ((_INSERTS["rewards"], [rows.reward_row(reward)]),)
        self._wait(Write(f"save a reward of rollout {reward.rollout_id}", steps, joins=True))

    def rewards(self, rollout_id: str, attempt: int | None = None) -> list[RewardRecord]:
        c = tables.rewards.c
        query = select(tables.rewards).where(c.rollout_id == rollout_id).order_by(c.id)
        if attempt is not None:
            query = query.where(c.attempt == attempt)
        return [rows.reward_record(row) for row in self._read(query)[0]]

    def add_spans(self, spans: Iterable[Span]) -> None:
        self._replace("save spans", "spans", [rows.span_row(span) for span in spans])

    def submit_spans(self, spans: Iterable[Span]) -> Future[None]:
        try:
            return self._submit(_replacement("save spans", "spans", [rows.span_row(span) for span in spans]))
        except StoreError as exc:
            return _failed(exc)

    def spans(self, rollout_id: str) -> list[Span]:
        c = tables.spans.c
        query = select(tables.spans).where(c.rollout_id == rollout_id).order_by(c.start_ns, c.span_id)
        return [rows.span_record(row) for row in self._read(query)[0]]

    def add_ledger(self, entries: Sequence[LedgerEntry]) -> None:
        self._replace("save the ledger", "ledger", [rows.ledger_row(entry) for entry in entries])

    def ledger(self, *, rollout_id: str | None = None, step: int | None = None) -> list[LedgerEntry]:
        c = tables.ledger.c
        query = select(tables.ledger).order_by(c.id)
        if rollout_id is not None:
            query = query.where(c.rollout_id == rollout_id)
        if step is not None:
            query = query.where(c.step == step)
        return [rows.ledger_entry(row) for row in self._read(query)[0]]

    def unsettled_calls(self) -> list[Call]:
        c, settled = tables.calls.c, tables.ledger.c
        unsettled = ~select(settled.call_id).where(settled.call_id == c.call_id).exists()
        found, choices = self._read(
            select(tables.calls).where(unsettled).order_by(c.received_at, c.call_id),
            select(tables.choices)
            .join(tables.calls, tables.choices.c.call_id == c.call_id)
            .where(unsettled)
            .order_by(tables.choices.c.position),
        )
        return rows.call_records(found, choices)

    def counts(self) -> Mapping[str, int]:
        found = self._read(*(select(func.count().label("n")).select_from(tables.metadata.tables[t]) for t in _COUNTED))
        return {name: result[0]["n"] for name, result in zip(_COUNTED, found, strict=True)}

    def set_note(self, key: str, value: Any) -> None:
        what = f"the note {key!r}"
        self._replace(f"save {what}", "notes", [{"key": key, "value": rows.to_json(value, what)}])

    def note(self, key: str) -> Any | None:
        found = self._read(select(tables.notes.c.value).where(tables.notes.c.key == key))[0]
        return json.loads(found[0]["value"]) if found else None

    def close(self) -> None:
        with self._submitting:
            self._closed = True
        self._finalizer()

    def _replace(self, doing: str, table: str, new: Sequence[rows.Row]) -> None:
        if new:
            self._wait(_replacement(doing, table, new))

    def _submit(self, write: Write) -> Future[None]:
        with self._submitting:
            self._check_open()
            return self._writer.submit(write)

    def _wait(self, write: Write) -> None:
        if self._writer.is_current_thread():
            raise StoreError(
                f"Cannot {write.doing}: a callback of `submit_call` would wait for itself",
                cure="Hand the work to another thread",
            )
        self._submit(write).result()

    def _read(self, *queries: Select[Any]) -> list[list[rows.Row]]:
        """The results of `queries`, which all see the same moment."""
        self._check_open()
        try:
            with self._reading.begin() as connection:
                # Columns are looked up by name only, which SQLAlchemy's type leaves open.
                return [[cast("rows.Row", row) for row in connection.execute(query).mappings()] for query in queries]
        except SQLAlchemyError as exc:
            raise self._failure(exc, "read the store") from exc

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            # The writing thread does not exist here, and SQLite's connections do not survive a fork.
            raise StoreError(
                f"The store {self._where} was opened by another process",
                cure="Open it anew in each process that uses it",
            )
        if self._closed:
            raise StoreError(f"The store {self._where} is closed", cure="Open it again with `open_store`")


def _failed(error: StoreError) -> Future[None]:
    failed: Future[None] = Future()
    failed.set_exception(error)
    return failed


def _shut(writer: Writer, reading: Engine, process: int) -> None:
    """Writes what is queued and lets go of the files; in a forked child there is nothing to write and no file to touch."""
    if os.getpid() == process:
        writer.stop()
        reading.dispose()
