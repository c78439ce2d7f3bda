"""What a person watching the run sees: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ProgressDisplay(Protocol):
    """Shows where a run is. All figures are plain text by name, in the order given."""

    def plan(self, total: int) -> None:
        """How many units of work (warm-start steps, training steps) the whole run has."""
        ...

    def done(self, units: int) -> None:
        """How many of them are done."""
        ...

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        """One phase of `total` items, for the length of the block."""
        ...

    def line(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None: ...


class Phase(Protocol):
    """A phase under way."""

    def advance(self, items: int = 1, figures: Mapping[str, str] | None = None) -> None:
        """`items` more are done; figures replace those shown so far."""
        ...

    def expect(self, items: int) -> None:
        """`items` more belong to the phase than it was known to have."""
        ...


class _LivePhase:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, items: int = 1, figures: Mapping[str, str] | None = None) -> None:
        if figures:
            self._progress.update(self._task, advance=items, figures=_joined(figures))
        else:
            self._progress.update(self._task, advance=items)

    def expect(self, items: int) -> None:
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._progress.update(self._task, total=(task.total or 0) + items)


class LiveDisplay:
    """Two bars: the whole run, and the phase under way."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )
        self._run: TaskID | None = None
        self._progress.start()

    def plan(self, total: int) -> None:
        self._run = self._progress.add_task("run", total=total, figures="")

    def done(self, units: int) -> None:
        if self._run is not None:
            self._progress.update(self._run, completed=units)

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        task = self._progress.add_task(name, total=total, figures="")
        try:
            yield _LivePhase(self._progress, task)
        finally:
            self._progress.remove_task(task)

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class _PlainPhase:
    def __init__(self, total: int) -> None:
        self.items = 0
        self.total = total
        self.figures: dict[str, str] = {}

    def advance(self, items: int = 1, figures: Mapping[str, str] | None = None) -> None:
        self.items += items
        self.figures.update(figures or {})

    def expect(self, items: int) -> None:
        self.total += items


class PlainDisplay:
    """One line when a phase ends, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._units = 0
        self._begun = time.monotonic()

    def plan(self, total: int) -> None:
        self._total = total

    def done(self, units: int) -> None:
        if units and not self._units:
            self._begun = time.monotonic()  # what was done before a resume says nothing about the time left
        self._units = units

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        phase, begun = _PlainPhase(total), time.monotonic()
        yield phase
        seconds = time.monotonic() - begun
        so_far = f"[{self._units}/{self._total}] " if self._total else ""
        self.line(f"{so_far}{name}: {phase.items}/{phase.total} in {seconds:.1f}s {_joined(phase.figures)}")

    def line(self, text: str) -> None:
        self._console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left open."""


def progress_display(console: Console) -> LiveDisplay | PlainDisplay:
    """The display that suits where the output goes."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def _joined(figures: Mapping[str, str]) -> str:
    return "  ".join(f"{name} {value}" for name, value in figures.items())
