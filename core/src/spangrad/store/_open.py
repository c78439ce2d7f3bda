"""Opening a store by path or URL."""

from __future__ import annotations

from pathlib import Path

from spangrad.errors import StoreError
from spangrad.store._contract import Store


def open_store(path_or_url: str | Path, *, create: bool = True, busy_seconds: float = 30.0) -> Store:
    """Opens the store at a path (or a `sqlite:///` URL), making it first where there is none.

    Args:
        path_or_url: the SQLite file, by custom `runs/<name>/spangrad.db`. It must be on a local disk: the write-ahead log
            needs memory shared between the processes that use the file.
        create: make the file, and the folders above it, when it does not exist, and make sure that it can be written.
            False makes a missing file an error and leaves the file as it is, for commands that only look; then it may lie on
            a read-only disk.
        busy_seconds: how long a write waits for another process that is writing.

    Raises:
        StoreError: it does not exist (with `create=False`), cannot be read or written, is no spangrad store, or was
            written by a newer spangrad.
    """
    path = _file(path_or_url)
    if path.is_dir():
        raise StoreError(f"{path} is a folder", cure=f"Give the file in it, such as {path / 'spangrad.db'}")
    if create:
        _make_folder(path.parent)
    elif not path.exists():
        raise StoreError(
            f"There is no store {path}", cure="Give the spangrad.db of a run, such as runs/<name>/spangrad.db"
        )
    # SQLAlchemy is a third of the time a small program spends importing; programs that open no store do not pay it.
    from spangrad.store._sqlite_store import open_sqlite  # noqa: PLC0415 - as said above

    return open_sqlite(path, create=create, busy_seconds=busy_seconds)


def _file(path_or_url: str | Path) -> Path:
    """The absolute path meant."""
    text = str(path_or_url)
    scheme, found, rest = text.partition("://")
    if found and isinstance(path_or_url, str):
        if scheme.partition("+")[0] != "sqlite":
            raise StoreError(
                f"Stores of kind {scheme!r} are not supported",
                cure="Give the path of an SQLite file, runs/<name>/spangrad.db",
            )
        text = rest.removeprefix("/")  # as in SQLAlchemy: three slashes are relative, four absolute
    if text in {"", ":memory:"}:
        raise StoreError("A store in memory would be lost", cure="Give the path of a file")
    return Path(text).expanduser().absolute()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreError(
            f"Cannot make the folder {folder}: {exc.strerror}", cure="Give a path in a folder that you can write to"
        ) from exc
