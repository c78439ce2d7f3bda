"""Opening a store on an SQLite file: is it ours, can it be written, are its tables there."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, insert, inspect, select, update
from sqlalchemy.exc import SQLAlchemyError

from spangrad.errors import StoreError
from spangrad.store._sql_store import SqlStore
from spangrad.store._sqlite import failure, needs_writing, sqlite_engine, takes_no_writes
from spangrad.store._tables import SCHEMA_VERSION, meta, metadata


def open_sqlite(path: Path, *, create: bool, busy_seconds: float) -> SqlStore:
    """Opens the store in an SQLite file; see `open_store`.

    Args:
        path: the file; only with `create` it may be missing or empty.
        create: make what is missing, and make sure that the file can be written.
        busy_seconds: how long a write waits for another process that is writing.

    Raises:
        StoreError: as said at `open_store`.
    """
    try:
        return _opened(path, create=create, busy_seconds=busy_seconds, immutable=False)
    except StoreError as error:
        if create or error.__cause__ is None or not needs_writing(error.__cause__) or not _is_whole(path):
            raise
    return _opened(path, create=False, busy_seconds=busy_seconds, immutable=True)


def _opened(path: Path, *, create: bool, busy_seconds: float, immutable: bool) -> SqlStore:
    explain = partial(failure, path=path, busy_seconds=busy_seconds)
    reading = sqlite_engine(path, writing=False, busy_seconds=busy_seconds, immutable=immutable)
    writing = sqlite_engine(path, writing=True, busy_seconds=busy_seconds)
    try:
        _check(reading, writing, path, create=create)
    except (SQLAlchemyError, sqlite3.Error) as exc:
        _dispose(reading, writing)
        raise explain(exc, "open the store") from exc
    except StoreError:
        _dispose(reading, writing)
        raise
    return SqlStore(reading=reading, writing=writing, where=str(path), failure=explain, hopeless=takes_no_writes)


def _is_whole(path: Path) -> bool:
    """Whether the file alone holds everything.

    Raises:
        StoreError: its last writes are in the write-ahead log beside it, which a read-only disk keeps from being read.
    """
    log = path.with_name(f"{path.name}-wal")
    if not path.is_file() or not log.exists():
        return path.is_file()
    if log.stat().st_size:
        raise StoreError(
            f"Cannot open the store: what was written to it last is in {log}, which cannot be read on a read-only disk",
            cure=f"Copy {path.parent} to a folder that can be written, and look there",
        )
    return True


def _check(reading: Engine, writing: Engine, path: Path, *, create: bool) -> None:
    """Looks before it writes, so that a database of somebody else stays as it is."""
    with reading.begin() as connection:
        ready = _is_ready(connection, path)
    if create:
        with writing.begin() as connection:
            if ready or _is_ready(connection, path):  # asked again, since another process may have been faster
                # Changes nothing, but a read-only file or a full disk refuses it: better now than at the first call.
                connection.execute(update(meta).values(value=meta.c.value))
            else:
                metadata.create_all(connection)
                connection.execute(insert(meta), {"key": "schema_version", "value": str(SCHEMA_VERSION)})
    elif not ready:
        raise StoreError(f"{path} is an empty file, not a store", cure="Give the spangrad.db of a run")


def _is_ready(connection: Connection, path: Path) -> bool:
    """Whether the tables are there; False for an empty database.

    Raises:
        StoreError: the database is somebody else's, or another spangrad's.
    """
    names = inspect(connection).get_table_names()
    if not names:
        return False
    if meta.name not in names:
        raise StoreError(f"{path} is a database, but not one of spangrad", cure="Give another path")
    found = connection.scalar(select(meta.c.value).where(meta.c.key == "schema_version"))
    if found != str(SCHEMA_VERSION):
        newer = found is not None and found.isdigit() and int(found) > SCHEMA_VERSION
        raise StoreError(
            f"{path} has schema version {found}; this spangrad reads version {SCHEMA_VERSION}",
            cure="Upgrade with `pip install --upgrade spangrad`" if newer else "Use the spangrad that wrote it",
        )
    return True


def _dispose(*engines: Engine) -> None:
    for engine in engines:
        engine.dispose()
