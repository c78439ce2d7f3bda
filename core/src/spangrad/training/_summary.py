"""What a run came to: summary.json and the table printed at its end."""

from __future__ import annotations

import json
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table

from spangrad.training._evaluation import Evaluation
from spangrad.training._run_file import write_whole


@dataclass(frozen=True)
class RunSummary:
    """Everything summary.json says."""

    run: str
    seed: int
    steps: int
    train_seconds: float
    before: Sequence[Evaluation]
    after: Sequence[Evaluation]
    seconds_by_phase: Mapping[str, float]
    counts: Mapping[str, int]
    """Rollouts, calls, trained transitions, dropped groups ... over the whole run."""
    backend: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The summary as it is written; the first held-out set is the headline."""
        return {
            "run": self.run,
            "seed": self.seed,
            "steps": self.steps,
            "heldout_before": self.before[0].as_json() if self.before else None,
            "heldout_after": self.after[0].as_json() if self.after else None,
            "heldout": {
                after.heldout: {"before": before.as_json(), "after": after.as_json()}
                for before, after in zip(self.before, self.after, strict=True)
            },
            "train_seconds": round(self.train_seconds, 1),
            "seconds_by_phase": {name: round(seconds, 1) for name, seconds in self.seconds_by_phase.items()},
            "peak_rss_mb": round(peak_rss_mb(), 1),
            "counts": dict(self.counts),
            "backend": dict(self.backend),
            "versions": versions(),
        }

    def write(self, path: Path) -> None:
        """Writes summary.json.

        Raises:
            RunFolderError: it cannot be written.
        """
        write_whole(path, json.dumps(self.as_json(), indent=2) + "\n")

    def table(self) -> Table:
        """Before and after, with 95% intervals."""
        table = Table(title=f"{self.run}: held-out tasks, greedy")
        for heading in ("held-out set", "tasks", "success before", "success after", "reward"):
            table.add_column(heading, justify="left" if heading == "held-out set" else "right")
        for before, after in zip(self.before, self.after, strict=True):
            table.add_row(
                after.heldout,
                str(after.success.count),
                _interval(before),
                _interval(after),
                f"{before.reward_mean:.2f} -> {after.reward_mean:.2f}",
            )
        return table


def peak_rss_mb() -> float:
    """Most memory this process has held at once, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def versions() -> dict[str, str]:
    """Python, spangrad and what its figures depend on."""
    names = ("spangrad", "spangrad-torch", "spangrad-openai", "torch", "transformers", "openai", "numpy")
    installed = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **{name: v for name, v in installed.items() if v is not None}}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _interval(evaluation: Evaluation) -> str:
    success = evaluation.success
    return f"{success.value:.2f} [{success.low:.2f}, {success.high:.2f}]"
