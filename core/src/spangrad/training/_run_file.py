"""The files of a run: written whole or not at all, read back and checked, with errors that say which file and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from spangrad.errors import RunFolderError, SpangradError

T = TypeVar("T")


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


def read_record(path: Path, kind: type[T]) -> T:
    """The dataclass that a JSON file holds.

    Raises:
        ValueError: the file cannot be read or holds something else; the message is the end of a sentence.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{where}{first['msg']}") from error
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
