"""The picture of a run: training reward per step and held-out success with its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spangrad.training._run_file import writing


def draw_curve(records: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Writes the reward curve of a run's metrics as a PNG.

    Args:
        records: the run's metrics, oldest first.
        path: where the picture goes.
        title: its heading.

    Raises:
        RunFolderError: it cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import, wanted once a run)

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    steps = [record for record in records if record["kind"] == "step" and record["reward_mean"] is not None]
    axes.plot(
        [r["step"] for r in steps], [r["reward_mean"] for r in steps], color="0.6", label="training reward (mean)"
    )
    for name in _heldout_names(records):
        points = [r for r in records if r["kind"] == "evaluation" and r["heldout"] == name]
        values = [r["success"] for r in points]
        below = [r["success"] - r["success_low"] for r in points]
        above = [r["success_high"] - r["success"] for r in points]
        label = f"held-out success: {name}"
        axes.errorbar([r["step"] for r in points], values, yerr=[below, above], marker="o", capsize=3, label=label)
    axes.set(xlabel="training step", ylabel="reward, success", ylim=(-0.03, 1.05), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    with writing(path):
        figure.savefig(path, format="png")


def _heldout_names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(r["heldout"] for r in records if r["kind"] == "evaluation"))
