"""One process at a time works in a run's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spangrad.errors import RunFolderError
from spangrad.training._run_file import writing


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds a lock on a run for the block. The system lets go of it when the process ends, however it ends.

    Args:
        file: kept in the run's folder; it holds the number of the process that has the lock.

    Raises:
        RunFolderError: another process has it, or the file cannot be written.
    """
    with writing(file):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, file)
        try:
            yield
        finally:
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # closing alone would leave it with a child that was forked meanwhile
    finally:
        os.close(descriptor)


def _take(descriptor: int, file: Path) -> None:
    with writing(file):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise RunFolderError(
                f"The run {file.parent} is in use by {f'process {holder}' if holder.isdecimal() else 'another process'}",
                cure="Wait until it ends or stop it; without --resume a new run gets a folder of its own",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
