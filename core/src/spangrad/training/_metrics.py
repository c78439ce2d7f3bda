"""metrics.jsonl: one JSON object per line, appended and flushed as things happen."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spangrad.errors import RunFolderError
from spangrad.training._run_file import write_whole, writing


class MetricsFile:
    """Appends records to a run's metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_record = False
        """A record could not be written; a checkpoint made now would keep it from ever being written again."""

    def append(self, kind: str, **record: Any) -> None:
        """Writes one record; figures that are not finite become null, since JSON has no word for them.

        Raises:
            RunFolderError: it cannot be written; what was there before is as it was.
        """
        line = json.dumps({"kind": kind, **_finite(record)}, allow_nan=False)
        self.lost_record = True
        with writing(self.path):
            size = self.path.stat().st_size if self.path.exists() else 0
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError:
                with suppress(OSError):  # half a line would spoil the next one
                    os.truncate(self.path, size)
                raise
        self.lost_record = False

    def keep_until(self, step: int) -> None:
        """Drops records of steps after `step`, which a resumed run will write again.

        Raises:
            RunFolderError: the file cannot be read or written; it is as it was.
        """
        kept = [line for line in self._lines() if _step(line) <= step]
        write_whole(self.path, "".join(line + "\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        """All records, oldest first; what is no record is passed over.

        Raises:
            RunFolderError: the file cannot be read.
        """
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be read: {error.strerror or error}", cure="Make it a readable file, or put it back"
            ) from error
        return [line for line in text.split("\n") if _whole(line)]


def _step(line: str) -> int:
    step = json.loads(line).get("step")
    return step if isinstance(step, int) else 0


def _whole(line: str) -> bool:
    """False for the torn last line of a process that was killed while writing, and for whatever else is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "kind" in record


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
