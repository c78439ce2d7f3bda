"""Files that cannot be a store, and disks that refuse."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from spangrad.errors import StoreError
from spangrad.store import open_store
from spangrad.store._sql_store import SqlStore, _replacement
from spangrad.store._writer import Write


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere, so tests of permissions run as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


def make(path: Path, **notes: int) -> None:
    """A store with some notes."""
    with closing(open_store(path)) as store:
        for key, value in notes.items():
            store.set_note(key, value)


def note(key: str, value: int | str) -> Write:
    """The write that `set_note` waits for."""
    return _replacement(f"save {key}", "notes", [{"key": key, "value": json.dumps(value)}])


def limit_pages(store: SqlStore, more: int | None) -> None:
    """Lets the file grow by so many pages only, as a disk with that much room would; None takes the limit away."""
    with store._writer._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        limit = 2**30 if more is None else pages + more
        assert connection.exec_driver_sql(f"PRAGMA max_page_count={limit}").scalar_one() == limit


def test_a_full_disk_fails_each_waiting_write_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "spangrad.db"
    with closing(open_store(path)) as store:
        assert isinstance(store, SqlStore)
        store.set_note("before", 1)
        limit_pages(store, 4)
        with pytest.raises(StoreError, match=rf"Cannot save the note 'big': the disk is full \({path}\)") as caught:
            store.set_note("big", "x" * 100_000)
        assert f"Free some space on the disk of {tmp_path}" in caught.value.cure
        assert store.note("big") is None
        store.set_note("small", 2)
        limit_pages(store, None)
        store.set_note("big", "x" * 100_000)
        assert (store.note("before"), store.note("small"), store.note("big")) == (1, 2, "x" * 100_000)


def test_a_write_too_big_for_the_disk_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "spangrad.db")) as store:
        assert isinstance(store, SqlStore)
        limit_pages(store, 4)
        writes = [note("small", 1), note("big", "x" * 100_000), note("last", 2)]
        with closing(store._writer._engine.connect()):  # the writing thread waits, so that they are queued together
            futures = [store._submit(write) for write in writes]
        errors = [future.exception(timeout=30) for future in futures]
        assert errors[0] is None
        assert "disk is full" in str(errors[1])
        assert errors[2] is None
        assert (store.note("small"), store.note("big"), store.note("last")) == (1, None, 2)


def test_a_store_locked_by_another_process_fails_every_waiting_write_and_then_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "spangrad.db"
    script = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""
    with closing(open_store(path, busy_seconds=0.2)) as store:
        store.set_note("before", 1)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == "locked\n"
            assert isinstance(store, SqlStore)
            futures = [store._submit(note(str(n), n)) for n in range(200)]
            # All at once: one after another they would wait for 40 s.
            assert not wait(futures, timeout=20).not_done
            for future in futures:
                assert "another process kept it locked for 0.2 s" in str(future.exception())
            assert store.note("before") == 1, "reading goes on"
            with pytest.raises(StoreError, match="Cannot open the store: another process kept it locked"):
                open_store(path, busy_seconds=0.2)
            other.stdin.write("\n")
        store.set_note("after", 2)
        assert store.note("after") == 2


def test_a_folder_that_cannot_be_written_is_named(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    with without_privileges():
        with pytest.raises(StoreError, match=rf"Cannot make the folder {open_folder}/runs/a: Permission denied"):
            open_store(open_folder / "runs" / "a" / "spangrad.db")
        with pytest.raises(StoreError, match="Cannot open the store: the file cannot be opened") as caught:
            open_store(open_folder / "spangrad.db")
    assert f"ls -ld {open_folder}" in caught.value.cure


def test_a_read_only_file_cannot_be_written_but_looked_at(open_folder: Path) -> None:
    path = open_folder / "spangrad.db"
    make(path, a=1)
    path.chmod(0o444)
    with without_privileges():
        with pytest.raises(StoreError, match="Cannot open the store: it is read-only"):
            open_store(path)
        with closing(open_store(path, create=False)) as store:
            assert store.note("a") == 1
            with pytest.raises(StoreError, match="Cannot save the note 'b': it is read-only") as caught:
                store.set_note("b", 2)
    assert "chmod u+w" in caught.value.cure


def test_a_store_in_a_read_only_folder_can_be_looked_at(open_folder: Path) -> None:
    path = open_folder / "a folder" / "spangrad 100%?.db"
    make(path, a=1)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    with without_privileges(), closing(open_store(path, create=False)) as store:
        assert store.note("a") == 1
        assert store.counts()["notes"] == 1
        with pytest.raises(StoreError, match="Cannot save the note 'b'"):
            store.set_note("b", 2)
    path.parent.chmod(0o777)
    assert list(path.parent.iterdir()) == [path]


def test_a_read_only_folder_whose_last_writes_cannot_be_read_is_said_so(open_folder: Path) -> None:
    path = open_folder / "spangrad.db"
    with closing(open_store(path)) as store:
        store.set_note("a", 1)
        killed = {name: (open_folder / name).read_bytes() for name in ("spangrad.db", "spangrad.db-wal")}
    for name, content in killed.items():
        (open_folder / name).write_bytes(content)
        (open_folder / name).chmod(0o444)
    open_folder.chmod(0o555)
    with without_privileges(), pytest.raises(StoreError, match=r"is in .*spangrad\.db-wal") as caught:
        open_store(path, create=False)
    assert f"Copy {open_folder}" in caught.value.cure


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("I am prose. " * 100)
    for create in (True, False):
        with pytest.raises(StoreError, match="the file is no SQLite database"):
            open_store(path, create=create)
    assert path.read_text() == "I am prose. " * 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE calls (mine)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is a database, but not one of spangrad"):
        open_store(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("version", "cure"), [("4", "pip install --upgrade spangrad"), ("2", "Use the spangrad that wrote it")]
)
def test_a_store_of_another_schema_version_is_refused(tmp_path: Path, version: str, cure: str) -> None:
    path = tmp_path / "spangrad.db"
    make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE spangrad_meta SET value = ?", (version,))
    with pytest.raises(StoreError, match=rf"has schema version {version}; this spangrad reads version 3") as caught:
        open_store(path)
    assert cure in caught.value.cure


def test_a_damaged_table_is_reported_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spangrad.db"
    make(path, a=1)
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'notes'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    with closing(open_store(path)) as store:
        with pytest.raises(StoreError, match="Cannot read the store: the file is damaged") as caught:
            store.note("a")
        assert ".recover" in caught.value.cure
        with pytest.raises(StoreError, match="Cannot save the note 'a': the file is damaged"):
            store.set_note("a", 2)


def test_looking_at_a_store_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store"):
        open_store(tmp_path / "runs" / "typo" / "spangrad.db", create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="is an empty file, not a store"):
        open_store(tmp_path / "empty.db", create=False)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder") as caught:
        open_store(tmp_path)
    assert str(tmp_path / "spangrad.db") in caught.value.cure


def test_a_file_above_the_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Cannot make the folder"):
        open_store(tmp_path / "file" / "spangrad.db")


def test_a_url_of_sqlite_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(f"sqlite:///{tmp_path}/absolute.db").close()
    open_store("sqlite:///relative.db").close()
    open_store("runs/plain.db").close()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.db")) == [
        "absolute.db",
        "relative.db",
        "runs/plain.db",
    ]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://host/db", "Stores of kind 'postgresql' are not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        (":memory:", "in memory"),
        ("", "in memory"),
    ],
)
def test_stores_that_would_not_last_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        open_store(url)


def test_a_store_error_is_an_os_error_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(StoreError("It broke", cure="Mend it")))  # noqa: S301 - made on this line
    assert isinstance(error, OSError)
    assert str(error) == "It broke. Mend it"
