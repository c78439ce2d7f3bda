"""metrics.jsonl: one JSON object per line, appended and flushed as things happen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricsFile:
    """Appends records to a run's metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **record: Any) -> None:
        """Writes one record; figures that are not finite become null, since JSON has no word for them."""
        line = json.dumps({"kind": kind, **_finite(record)}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def keep_until(self, step: int) -> None:
        """Drops records of steps after `step`, which a resumed run will write again."""
        kept = [line for line in self._lines() if _step(line) <= step]
        self.path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def read(self) -> list[dict[str, Any]]:
        """All records, oldest first."""
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if _whole(line)]


def _step(line: str) -> int:
    step = json.loads(line).get("step")
    return step if isinstance(step, int) else 0


def _whole(line: str) -> bool:
    """False for the torn last line of a process that was killed while writing."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
