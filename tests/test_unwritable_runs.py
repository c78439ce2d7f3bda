"""Files of a run that cannot be written: one clear error, and nothing that is finished is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Project

OBSTRUCTION = """\


from pathlib import Path

CALLS = 0


def obstruct():
    global CALLS
    CALLS += 1
    path = Path({path!r})
    if CALLS == {call} and not Path("cleared").exists():
        if path.exists():
            path.rename(path.with_name("aside"))
        path.mkdir() if {file} else path.touch()
"""


def obstruct(project: Project, path: str, *, call: int = 1) -> None:
    """Puts a folder where the run writes a file, or a file where it makes a folder, when the reward is asked for."""
    with (project.path / "agent.py").open("a") as agent:
        agent.write(OBSTRUCTION.format(path=path, call=call, file="." in Path(path).name))
    project.edit("def reward(task, output):\n", "def reward(task, output):\n    obstruct()\n", file="agent.py")


def clear(project: Project, path: str) -> None:
    """Takes the obstruction away for good, and puts back what it displaced."""
    (project.path / "cleared").touch()
    obstruction = project.path / path
    obstruction.rmdir() if obstruction.is_dir() else obstruction.unlink()
    if (aside := obstruction.with_name("aside")).exists():
        aside.rename(obstruction)


def fail(project: Project, *arguments: str) -> str:
    done = project.run(*arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr[done.stderr.index("error: ") :]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("summary.json", "runs/demo/summary.json cannot be written: Is a directory"),
        ("reward_curve.png", "runs/demo/reward_curve.png cannot be written: Is a directory"),
        ("checkpoints", "The checkpoint of step 1 cannot be written to runs/demo/checkpoints"),
        ("model", "The folder runs/demo/model could not be written"),
    ],
)
def test_a_training_says_which_file_it_could_not_write_and_goes_on_from_there(
    project: Project, name: str, said: str
) -> None:
    project.edit("steps = 4", "steps = 1")
    obstruct(project, f"runs/demo/{name}")

    error = fail(project, "train", "train.toml")
    clear(project, f"runs/demo/{name}")
    summary = project.json("train", "train.toml", "--resume")

    assert error.startswith(f"error: {said}")
    assert "\n  -> Free some disk space" in error
    assert summary["steps"] == 1
    assert [r["kind"] for r in project.metrics()] == ["evaluation", "step", "evaluation"]
    assert (project.path / "runs/demo/summary.json").is_file()
    assert (project.path / "runs/demo/reward_curve.png").is_file()


def test_a_lost_record_of_a_step_is_made_again_on_going_on(project: Project) -> None:
    project.edit("checkpoint_every = 2", "checkpoint_every = 1")
    reference = project.json("train", "train.toml", "--runs", "whole")
    obstruct(project, "runs/demo/metrics.jsonl", call=16 + 2 * 16 + 5)  # while step 3 is collected

    error = fail(project, "train", "train.toml")
    checkpoints = [entry.name for entry in (project.path / "runs/demo/checkpoints").iterdir()]
    clear(project, "runs/demo/metrics.jsonl")
    summary = project.json("train", "train.toml", "--resume")

    assert error.startswith("error: runs/demo/metrics.jsonl cannot be written: Is a directory")
    assert checkpoints == ["step-00002"]
    steps = {r["step"]: r for r in project.metrics() if r["kind"] == "step"}
    assert list(steps) == [1, 2, 3, 4]
    assert steps[3]["rollouts_reused"] == 16
    assert summary["heldout_after"] == reference["heldout_after"]


def test_settings_that_cannot_be_kept_are_said_before_anything_runs(trained_project: Project) -> None:
    (trained_project.path / "runs/demo/config.json").unlink()
    (trained_project.path / "runs/demo/config.json").mkdir()

    error = fail(trained_project, "train", "train.toml", "--resume")

    assert error.startswith("error: runs/demo/config.json cannot be written: Is a directory")


def test_a_new_run_whose_first_files_cannot_be_written_leaves_no_folder(project: Project) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {sys.executable} -m spangrad train train.toml"],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": str(project.path / "plugin"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: runs/demo/lock cannot be written: File too large")
    assert list((project.path / "runs").iterdir()) == []


@pytest.mark.parametrize("name", ["evaluation.json", "answers.jsonl"])
def test_an_evaluation_says_which_file_it_could_not_write_and_its_rollouts_are_kept(
    project: Project, name: str
) -> None:
    obstruct(project, f"runs/demo-evaluation/{name}")

    error = fail(project, "eval", "train.toml")

    assert error.startswith(f"error: runs/demo-evaluation/{name} cannot be written: Is a directory")
    assert len(project.json("rollouts")["rollouts"]) == 16


def test_answers_that_json_cannot_carry_are_shown_as_text(project: Project) -> None:
    project.edit("    return answer.choices", "    return ODD or answer.choices", file="agent.py")
    project.edit("CLIENT = None\n", "CLIENT = None\nODD = {'half': '\\ud800', 'what': object}\n", file="agent.py")

    project.json("eval", "train.toml")
    report = project.json_of("run", "--json", "--config", "train.toml", "--task", '{"a": 4, "b": 5}')

    text = (project.path / "runs/demo-evaluation/answers.jsonl").read_text()
    answers = [json.loads(line)["output"] for line in text.splitlines()]
    assert answers == [r"""{"half": "\ud800", "what": "<class 'object'>"}"""] * 16
    assert report["rollouts"][0]["output"] == answers[0]
