"""Writing the files of a run: whole or not at all, and with an error that says which file and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spangrad.errors import RunFolderError, SpangradError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes errors of the disk in the block errors about this file.

    Raises:
        RunFolderError: the disk is full, or the file may not be written.
    """
    try:
        yield
    except SpangradError:  # some of them are OSErrors too, and say more already
        raise
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}",
            cure="Free some disk space or make it writable. What is finished is kept: a training goes on with --resume",
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a text file; one that is there already is replaced when the new one is complete, or stays as it was.

    Raises:
        RunFolderError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
