"""How things are measured: in turns, several times, medians with the spread, and what it ran on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

FEWEST_REPEATS: Final = 5
"""Of a figure that goes into the table."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--repeats", type=int, default=FEWEST_REPEATS, help="how often each is measured, in turns")
    made.add_argument("--without-peers", action="store_true", help="measure ours only, to see that it works")
    made.add_argument("--small", action="store_true", help="tiny sizes, to see that it works")
    return made


def in_turns(repeats: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each measure's figures: all are taken once, then all again, so that what else the machine does hits all alike.

    One turn before the first is thrown away.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(repeats + 1):
        for name, measure in measures.items():
            figure = measure()
            if turn:
                found[name].append(figure)
    return found


def summary(figures: Sequence[float]) -> dict[str, float]:
    """Median, and the lowest and highest."""
    return {
        "median": significant(statistics.median(figures)),
        "lowest": significant(min(figures)),
        "highest": significant(max(figures)),
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ours over theirs, turn by turn."""
    return summary([mine / other for mine, other in zip(ours, theirs, strict=True)])


def significant(figure: float, digits: int = 4) -> float:
    """The number with so many digits."""
    return float(f"{figure:.{digits}g}")


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that was."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def our_versions(*more: str) -> dict[str, str]:
    """Of Python, spangrad and whatever else is named."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("spangrad", *more)}}


def show(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints a benchmark's object: as JSON, or indented to be read."""
    print(json.dumps(found) if as_json else json.dumps(found, indent=2))


def _processor() -> str:
    """The processor's name, where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
