"""All that is special about SQLite: its connections and its error codes.

Durability. The journal is a write-ahead log (readers never wait for the writer), with `synchronous=FULL`: every commit waits
until the log is on the disk. With `NORMAL` a commit would survive the death of the process but not a power cut, and the store
promises that a write has reached the disk when it returns. What FULL costs, one `fsync` a commit, is shared by all the writes
that were waiting for it (see the writer).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event

from spangrad.errors import StoreError

_DEAF: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,
    }
)
"""Codes that say the whole database takes no writes now."""

_REASONS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_BUSY: (
        "another process kept it locked for {busy:g} s",
        "Close whatever holds {path} open for writing (another training, a database browser) and try again",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened",
        "You must be able to read it, and to write in its folder, where SQLite keeps more: check `ls -ld {folder} {path}`",
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "it breaks a rule of the table",
        "Each value must be a number or text as its record says",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged",
        "Save what can be read with `sqlite3 {path} .recover`, or start again under another run name",
    ),
    sqlite3.SQLITE_FULL: (
        "the disk is full",
        "Free some space on the disk of {folder}; then the store goes on by itself",
    ),
    sqlite3.SQLITE_IOERR: (
        "the disk refused to read or write",
        "Check the disk, quotas and limits of {folder}; SQLite needs a local disk, not a network folder",
    ),
    sqlite3.SQLITE_NOTADB: ("the file is no SQLite database", "Give another path, or move that file away"),
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "Make the file and its folder writable (`chmod u+w`), or give another path",
    ),
}
_REASONS[sqlite3.SQLITE_LOCKED] = _REASONS[sqlite3.SQLITE_BUSY]


def sqlite_engine(path: Path, *, writing: bool, busy_seconds: float, immutable: bool = False) -> Engine:
    """An engine for one of the two uses of the file.

    Args:
        path: the file.
        writing: one connection whose transactions take the write lock when they begin, so that they cannot fail half-way
            for want of it; otherwise a pool of connections that can only read.
        busy_seconds: how long a connection waits for a lock.
        immutable: read the file as it lies there, without locks and without its write-ahead log: all that is possible on a
            read-only disk.
    """
    url = URL.create("sqlite", database=str(path))
    if immutable:
        url = URL.create("sqlite", database=path.as_uri(), query={"immutable": "1", "uri": "true"})
    engine = create_engine(
        url,
        # Without an isolation level the driver leaves BEGIN to the listener below.
        connect_args={"timeout": busy_seconds, "isolation_level": None, "check_same_thread": False},
        pool_size=1 if writing else 8,
        max_overflow=0 if writing else 8,
        # Readers only wait for each other: a minute means that something hangs.
        pool_timeout=60,
    )

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        if writing:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        else:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def needs_writing(error: BaseException) -> bool:
    """Whether the file could not even be read, because SQLite keeps two files beside it and may not make them."""
    return _code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def takes_no_writes(error: Exception) -> bool:
    """Whether `error` concerns the whole database, so that other writes would fail just the same."""
    return _code(error) in _DEAF


def failure(error: Exception, doing: str, path: Path, *, busy_seconds: float) -> StoreError:
    """What to tell the user about an error of the database or its driver.

    Args:
        error: as SQLAlchemy or the driver raised it.
        doing: what was tried, as in "save call c1".
        path: the file.
        busy_seconds: how long the connection had waited for a lock.
    """
    if _is_duplicate(error):
        return StoreError(f"Cannot {doing}: {path} has it already", cure="Give each record an id of its own")
    reason, cure = _REASONS.get(_code(error), (str(getattr(error, "orig", error)), "Report this with the run's folder"))
    names = {"busy": busy_seconds, "path": path, "folder": path.parent}
    return StoreError(f"Cannot {doing}: {reason.format(**names)} ({path})", cure=cure.format(**names))


def _code(error: BaseException) -> int:
    """SQLite's primary result code; 0 when the error is none of SQLite's."""
    return int(getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)) & 0xFF


def _is_duplicate(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code in {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}
