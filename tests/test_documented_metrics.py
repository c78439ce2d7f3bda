"""docs/metrics.md names every figure that a run writes, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project

ROOT = Path(__file__).parent.parent
LOSSES = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")

OF_SOME_RUNS = {
    "flat_tokens", "repeated_tokens", "packs", "gradient_seconds", "step_seconds", "optimizer_steps", "return_std",
    "advantage_mean", "advantage_abs_mean",
}  # fmt: skip
"""Figures of the torch backend, of named agents, and of steps that are trained on."""


def named_in(section: str) -> set[str]:
    """Figures that have a row in the section's table."""
    (text,) = [part for part in re.split(r"^##+ ", METRICS, flags=re.MULTILINE) if part.startswith(f"`{section}`")]
    rows = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/.]+)`", row)}


def with_demonstrations(project: Project) -> None:
    """Gives the run a warm start."""
    with (project.path / "agent.py").open("a") as file:
        file.write(
            '\n\ndef shown():\n    said = {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}\n'
            '    return [{"messages": list(said)}]\n'
        )
    project.edit("[tasks]", '[warm_start]\ndemonstrations = "agent:shown"\nsteps = 1\n\n[tasks]')


def figures(record: Mapping[str, Any]) -> Iterator[str]:
    """Names of a record, those of tables that have their own words left out."""
    yield from record.keys() - {"kind"}


@pytest.mark.parametrize("kind", ["step", "evaluation", "warm_start"])
def test_every_figure_of_a_record_is_documented_and_every_documented_one_is_written(
    project: Project, kind: str
) -> None:
    with_demonstrations(project)
    done = project.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    records = [record for record in project.metrics() if record["kind"] == kind]
    assert records
    for record in records:
        assert set(figures(record)) == named_in(kind)


def test_the_figures_of_updates_and_of_lightningrl_are_documented(project: Project) -> None:
    assert project.run("train", "train.toml").returncode == 0
    steps = [record for record in project.metrics() if record["kind"] == "step"]
    of_losses = set(re.findall(r"`(\w+)`", LOSSES.partition("## Figures")[2]))
    updates = {name for step in steps for update in step["updates"] for name in update}
    assert updates - of_losses <= named_in("updates")
    assert named_in("updates") - updates <= OF_SOME_RUNS
    found = {name for step in steps for name in step["lightningrl"]}
    assert found <= named_in("lightningrl")
    assert named_in("lightningrl") - found <= OF_SOME_RUNS | {"agent/NAME/...", "policy/NAME/...", "memory/NAME"}
