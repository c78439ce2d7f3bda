"""How long a run takes, as a whole and by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds spent on a run."""

    before: float = 0.0
    """By processes that worked on the run earlier."""
    phases: dict[str, float] = field(default_factory=dict)
    """By phase, in this process."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> float:
        """Over all processes."""
        return self.before + time.monotonic() - self.begun

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the block's time to a phase."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begun
