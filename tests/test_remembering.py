"""What an advantage estimator remembers is kept with a run's checkpoints: a resumed run goes on as if it had never stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project, new_project

ESTIMATOR = '\n[algorithm]\nestimator = { name = "rae", alpha = 0.9 }\n'
AGENTS = 'model="policy", messages=messages, max_tokens=8, extra_headers={"x-spangrad-agent": name}'
SETTINGS = ("--set", "training.checkpoint_every=1", "--set", "training.rollouts_per_task=2")


def state(project: Project) -> dict[str, Any]:
    """What the latest checkpoint says."""
    (found,) = (project.path / "runs/demo/checkpoints").glob("*/state.json")
    read: dict[str, Any] = json.loads(found.read_text())
    return read


def with_rae(path: Path) -> Project:
    """A project whose agent has two names, by the sum it is asked for, and which trains with rae."""
    project = new_project(path)
    project.edit('model="policy", messages=messages, max_tokens=8', AGENTS, file="agent.py")
    project.edit(
        "    messages =",
        '    name = "even" if (task["a"] + task["b"]) % 2 == 0 else "odd"\n    messages =',
        file="agent.py",
    )
    (project.path / "train.toml").write_text((project.path / "train.toml").read_text() + ESTIMATOR)
    return project


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = with_rae(tmp_path_factory.mktemp("uninterrupted"))
    project.json("train", "train.toml", *SETTINGS)
    return project


def test_the_memory_is_in_the_checkpoint_and_in_the_metrics(uninterrupted: Project) -> None:
    saved = state(uninterrupted)
    steps = [record for record in uninterrupted.metrics() if record["kind"] == "step"]

    assert saved["step"] == 4
    assert set(saved["memory"]) == {"0/even", "0/odd"}
    assert all(0 < baseline <= 1 for baseline in saved["memory"].values())
    for name, baseline in saved["memory"].items():
        assert steps[-1]["lightningrl"][f"memory/{name}"] == baseline
    assert {"agent/even/return_mean", "agent/odd/return_mean"} <= set().union(*(r["lightningrl"] for r in steps))


def test_each_step_starts_from_the_baselines_of_the_step_before(uninterrupted: Project) -> None:
    # The agents are called once per rollout, so b <- 0.9^n * b + (1 - 0.9^n) * mean for n rollouts.
    baselines = {"even": 0.0, "odd": 0.0}
    for record in uninterrupted.metrics():
        if record["kind"] != "step":
            continue
        figures = record["lightningrl"]
        for name, before in baselines.items():
            count = figures.get(f"agent/{name}/rollouts", 0)
            mean = figures.get(f"agent/{name}/return_mean", 0.0)
            baselines[name] = 0.9**count * before + (1 - 0.9**count) * mean
            assert figures.get(f"memory/0/{name}", 0.0) == pytest.approx(baselines[name], rel=1e-12)


def test_a_run_killed_after_a_checkpoint_remembers_the_same_in_the_end(uninterrupted: Project, tmp_path: Path) -> None:
    project = with_rae(tmp_path)
    with project.started("train", "train.toml", *SETTINGS) as process:
        assert process.stderr is not None
        # Steps 1 and 2 are saved once step 3 is under way; the block ends with SIGKILL.
        assert any("step 3 learning" in line for line in process.stderr)
    assert state(project)["step"] < 4
    assert state(project)["memory"] != state(uninterrupted)["memory"]

    done = project.run("train", "train.toml", "--resume", *SETTINGS)

    assert done.returncode == 0, done.stderr
    assert "Going on after warm-start step 0, training step" in done.stderr
    assert state(project)["memory"] == state(uninterrupted)["memory"]
    memories = [
        [
            {name: value for name, value in record["lightningrl"].items() if name.startswith("memory/")}
            for record in steps
        ]
        for steps in ([r for r in p.metrics() if r["kind"] == "step"] for p in (project, uninterrupted))
    ]
    assert memories[0] == memories[1]


def test_a_checkpoint_of_a_version_without_memory_is_gone_on_from(uninterrupted: Project, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted.path, tmp_path, dirs_exist_ok=True)
    project = Project(tmp_path)
    (file,) = (project.path / "runs/demo/checkpoints").glob("*/state.json")
    saved = json.loads(file.read_text())
    del saved["memory"]
    file.write_text(json.dumps(saved))

    done = project.run("train", "train.toml", "--resume", *SETTINGS, "--set", "training.steps=5")

    assert done.returncode == 0, done.stderr
    assert set(state(project)["memory"]) <= {"0/even", "0/odd"}
