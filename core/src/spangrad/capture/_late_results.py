"""Counting what comes after the end of the attempt it belongs to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Literal

LateKind = Literal["calls", "spans", "rewards"]


class LateResults:
    """Counts late calls, spans and rewards; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter({"calls": 0, "spans": 0, "rewards": 0})

    def add(self, kind: LateKind, count: int = 1) -> None:
        """Counts some more."""
        with self._lock:
            self._counts[kind] += count

    def counts(self) -> Mapping[str, int]:
        """All there were so far, by kind."""
        with self._lock:
            return dict(self._counts)
