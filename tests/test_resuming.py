"""Stopping a run and going on with it: the command that does, what has changed, what is gone, and who else is at it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.conftest import Project

FORKING = """
    import os
    import signal

    if not os.path.exists("left"):
        if (child := os.fork()) == 0:
            signal.pause()
        open("left", "w").write(str(child))
"""


def wait_for(lines: Iterator[str], part: str) -> None:
    for line in lines:
        if part in line:
            return
    pytest.fail(f"{part!r} was never said")


@contextmanager
def training(project: Project, *arguments: str, until: str) -> Iterator[int]:
    """A long run that is under way during the block; gives its process number. Killed at the end."""
    with project.started("train", "train.toml", "--set", "training.steps=4000", *arguments) as process:
        assert process.stderr is not None
        wait_for(process.stderr, until)
        yield process.pid


def fail(project: Project, *arguments: str) -> str:
    done = project.run("train", "train.toml", "--resume", *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


class TestTheHint:
    def test_it_is_a_command_that_goes_on_with_the_same_settings(self, project: Project) -> None:
        config, runs = "my files/train one's.toml", "my runs"
        (project.path / "my files").mkdir()
        for name in ("train.toml", "agent.py"):
            (project.path / name).rename(project.path / "my files" / name)
        (project.path / "my files/train.toml").rename(project.path / config)
        settings = ["--set", "seed=2", "--set", 'policy.aliases=["policy", "a b"]', "--set", "training.steps=3"]
        with project.started("train", config, *settings, "--runs", runs, "--json") as process:
            assert process.stderr is not None
            wait_for(process.stderr, "step 1 learning")
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == 130
        (hint,) = [line.partition("Go on with: ")[2] for line in rest.splitlines() if "Go on with: " in line]

        words = shlex.split(hint)
        done = project.run(*words[1:])

        assert words == ["spangrad", "train", config, *settings, "--runs", runs, "--json", "--resume"]
        assert done.returncode == 0, done.stderr
        assert "Changed" not in done.stderr
        assert (json.loads(done.stdout)["seed"], json.loads(done.stdout)["steps"]) == (2, 3)


class TestSettings:
    def test_each_one_that_has_changed_is_said_and_takes_effect(self, trained_project: Project) -> None:
        done = trained_project.run(
            "train", "train.toml", "--resume", "--set", "training.steps=5",
            "--set", "training.learning_rate=0.001", "--set", "scripted.context_length=5000",
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        changes = [line.partition(": ")[2] for line in done.stderr.splitlines() if line.startswith("Changed since")]
        assert changes == [
            "scripted.context_length was 65536, is 5000",
            "training.learning_rate was 1e-05, is 0.001",
            "training.steps was 4, is 5",
        ]
        kept = json.loads((trained_project.path / "runs/demo/config.json").read_text())
        assert kept["config"]["training"]["learning_rate"] == 0.001

    def test_a_refused_resumption_leaves_the_runs_settings_as_they_were(self, trained_project: Project) -> None:
        before = (trained_project.path / "runs/demo/config.json").read_bytes()

        assert "seed was 5, is 6" in fail(trained_project, "--set", "seed=6")
        assert (trained_project.path / "runs/demo/config.json").read_bytes() == before

    def test_fewer_steps_than_are_done_are_refused(self, trained_project: Project) -> None:
        assert "has done 4 training steps already, more than training.steps = 3" in fail(
            trained_project, "--set", "training.steps=3"
        )


class TestMissingParts:
    def test_a_run_without_its_store_goes_on_and_says_so(self, trained_project: Project) -> None:
        (trained_project.path / "runs/demo/spangrad.db").unlink()

        done = trained_project.run("train", "train.toml", "--resume", "--set", "training.steps=5")

        assert done.returncode == 0, done.stderr
        assert "spangrad.db is gone: a new one is begun, and what came before step 5 cannot be explained" in done.stderr
        assert [r["step"] for r in trained_project.metrics() if r["kind"] == "step"] == [1, 2, 3, 4, 5]

    def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again_and_says_so(self, project: Project) -> None:
        with training(project, "--set", "training.checkpoint_every=4000", until="step 2 learning"):
            pass

        done = project.run("train", "train.toml", "--resume")

        assert done.returncode == 0, done.stderr
        assert "runs/demo has no checkpoint: it begins again" in done.stderr
        steps = {r["step"]: r["rollouts_reused"] for r in project.metrics() if r["kind"] == "step"}
        assert list(steps) == [1, 2, 3, 4]
        assert steps[1] == 16

    def test_a_finished_run_without_its_checkpoint_is_not_overwritten(self, trained_project: Project) -> None:
        shutil.rmtree(trained_project.path / "runs/demo/checkpoints")
        metrics = (trained_project.path / "runs/demo/metrics.jsonl").read_bytes()

        assert "its checkpoint is gone" in fail(trained_project)
        assert (trained_project.path / "runs/demo/metrics.jsonl").read_bytes() == metrics

    def test_unreadable_settings_are_said_and_written_anew(self, trained_project: Project) -> None:
        (trained_project.path / "runs/demo/config.json").write_text("{")

        done = trained_project.run("train", "train.toml", "--resume")

        assert done.returncode == 0, done.stderr
        assert "whether settings have changed is not known" in done.stderr
        assert json.loads((trained_project.path / "runs/demo/config.json").read_text())["seed"] == 5

    def test_a_run_without_its_settings_that_cannot_be_served_is_left_as_it_was(self, trained_project: Project) -> None:
        (trained_project.path / "runs/demo/config.json").unlink()

        with socket.create_server(("127.0.0.1", 0)) as server:
            error = fail(trained_project, "--set", "training.steps=5", "--port", str(server.getsockname()[1]))

        assert "is in use" in error
        assert (trained_project.path / "runs/demo/checkpoints/step-00004").is_dir()
        assert trained_project.json("rollouts", "--run", "runs/demo")["rollouts"]

    def test_what_was_not_measured_before_training_is_not_measured_afterwards_and_called_before(
        self, trained_project: Project
    ) -> None:
        extra = 'tasks.heldout={ bigger = "agent:heldout", smaller = "agent:train" }'
        assert "does not say how the model did on smaller before it was trained" in fail(
            trained_project, "--set", extra, "--set", "training.steps=5"
        )
        (trained_project.path / "runs/demo/metrics.jsonl").unlink()
        assert "does not say how the model did on bigger before it was trained" in fail(
            trained_project, "--set", "training.steps=5"
        )

        done = trained_project.run(
            "train", "train.toml", "--resume", "--set", "training.steps=5", "--set", "tasks.heldout={}"
        )

        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("file", ["checkpoints/step-00004/state.json", "spangrad.db"])
    def test_a_damaged_file_is_named(self, trained_project: Project, file: str) -> None:
        (trained_project.path / "runs/demo" / file).write_text('{"step": "x"}' * 100)

        assert file.rpartition("/")[2] in fail(trained_project, "--set", "training.steps=5")


class TestTwoProcesses:
    def test_the_second_on_one_run_is_refused_until_the_first_is_dead_however_it_died(self, project: Project) -> None:
        with training(project, "--set", "training.checkpoint_every=4000", until="step 1 learning") as process:
            assert f"The run runs/demo is in use by process {process}" in fail(project)
            assert project.run("rollouts", "--limit", "1").returncode == 0
        # The block has killed it with SIGKILL.
        done = project.run("train", "train.toml", "--resume")

        assert done.returncode == 0, done.stderr
        assert project.json("rollouts", "--limit", "1")["rollouts"]

    def test_a_process_that_an_agent_forked_and_left_behind_does_not_hold_the_run(self, project: Project) -> None:
        project.edit("    global CLIENT\n", f"    global CLIENT\n{FORKING}", file="agent.py")
        with training(project, "--set", "training.checkpoint_every=1", until="step 2 learning"):
            pass
        left = int((project.path / "left").read_text())
        try:
            done = project.run("train", "train.toml", "--resume", "--set", "training.steps=0")
            os.kill(left, 0)  # it is still there
        finally:
            os.kill(left, signal.SIGKILL)

        assert "has done" in done.stderr, "the run was looked into"
        assert "in use" not in done.stderr

    def test_new_runs_get_folders_of_their_own_side_by_side(self, project: Project) -> None:
        with training(project, until="step 1 learning"):
            assert project.json("train", "train.toml")["run"] == "demo-2"
