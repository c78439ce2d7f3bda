"""Opening a store by path or URL."""

from __future__ import annotations

from pathlib import Path

from spangrad.store._contract import Store


def open_store(path_or_url: str | Path, *, create: bool = True, busy_seconds: float = 30.0) -> Store:
    """Opens the store at a path (or a `sqlite:///` URL), making it first where there is none.

    Args:
        path_or_url: the SQLite file, by custom `runs/<name>/spangrad.db`. It must be on a local disk: the write-ahead log
            needs memory shared between the processes that use the file.
        create: make the file, and the folders above it, when it does not exist; False makes that an error, for
            commands that only look.
        busy_seconds: how long a write waits for another process that is writing.

    Raises:
        StoreError: it does not exist (with `create=False`), cannot be read or written, is no spangrad store, or was
            written by a newer spangrad.
    """
    raise NotImplementedError
