"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from spangrad.errors import CheckpointError


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Gives an empty folder to write to, which takes the place of `folder` when the block ends well.

    A folder of that name is replaced at the last moment; an error or a killed process leaves it as it was. Files are on the
    disk before the name is.

    Raises:
        CheckpointError: the disk is full or may not be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    previous = _previous(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _flush(file)
        _flush(partial)
        shutil.rmtree(previous, ignore_errors=True)
        if folder.exists():
            folder.rename(previous)
        partial.rename(folder)
        _flush(folder.parent)
        shutil.rmtree(previous, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        raise CheckpointError(
            f"The folder {folder} could not be written: {error}",
            cure="Free some disk space or choose a folder that can be written; what was there before is untouched",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def whole_folder(folder: Path) -> Path:
    """Where the last whole version of a folder lies: beside it, if a process was killed between its two renamings."""
    previous = _previous(folder)
    return previous if not folder.exists() and previous.is_dir() else folder


def _previous(folder: Path) -> Path:
    """Where the version to be replaced goes for a moment."""
    return folder.with_name(f".{folder.name}.previous")


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
