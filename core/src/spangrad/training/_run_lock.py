"""One process at a time works in a run's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from spangrad.errors import RunFolderError
from spangrad.training._run_file import writing

_held: Final[set[int]] = set()
"""Descriptors of the locks that this process has. A process that an agent forks off starts without any: it would keep the
lock for as long as it lives, even when the run that had it is long dead."""


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
    _held.add(descriptor)
    try:
        _take(descriptor, file)
        yield
    finally:
        if descriptor in _held:  # not in a forked process that came this way
            _held.remove(descriptor)
            # Closing alone would leave it with a program that is just being started, until that has closed it too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
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


def _let_go_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
