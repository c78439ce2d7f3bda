"""`spangrad rollouts`, `explain` and `export`: which run they look into, and runs that cannot be written."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace

from tests.conftest import Project

from spangrad.store import RolloutStatus, open_store


def fail(project: Project, *arguments: str) -> str:
    done = project.run(*arguments)
    assert done.returncode not in {0, 130}, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


class TestWhichRun:
    def test_export_takes_the_latest_run_that_has_a_checkpoint(self, trained_project: Project) -> None:
        assert trained_project.json("export", "out") == {"folder": "out", "run": "runs/demo", "step": 4}
        assert "runs/demo-evaluation holds no checkpoint" in fail(
            trained_project, "export", "other", "--run", "runs/demo-evaluation"
        )

    def test_export_says_when_no_run_has_a_checkpoint(self, trained_project: Project) -> None:
        shutil.rmtree(trained_project.path / "runs/demo/checkpoints")

        assert "No run under runs has a checkpoint" in fail(trained_project, "export", "out")

    def test_rollouts_are_listed_with_their_tasks_calls_and_agents_wherever_runs_are_kept(
        self, trained_project: Project
    ) -> None:
        (trained_project.path / "runs").rename(trained_project.path / "elsewhere")

        rows = trained_project.json("rollouts", "--runs", "elsewhere", "--phase", "evaluate")["rollouts"]

        assert {row["task_id"] for row in rows} == {f"{a}+{b}" for a in range(10, 18) for b in range(2)}
        assert {(row["calls"], tuple(row["agents"])) for row in rows} == {(1, ())}
        shown = trained_project.run("rollouts", "--runs", "elsewhere").stdout
        assert (
            "  task 10+0  succeeded  reward 1.000  calls 1" in shown or "  task 10+0  succeeded  reward 0.000" in shown
        )
        assert trained_project.run("explain", rows[0]["rollout_id"], "--runs", "elsewhere").returncode == 0
        assert trained_project.json("export", "out", "--runs", "elsewhere")["step"] == 4

    def test_a_list_of_rollouts_has_a_line_for_each_however_long_its_error_is(self, trained_project: Project) -> None:
        error = (
            f"python agent.py exited with status 1: Traceback (most recent call last):\n  File\nKeyError: {'x' * 300}\n"
        )
        with closing(open_store(trained_project.path / "runs/demo/spangrad.db")) as store:
            (record,) = store.rollouts(limit=1)
            store.save_rollout(replace(record, status=RolloutStatus.FAILED, error=error))

        lines = trained_project.run("rollouts", "--run", "runs/demo", "--limit", "2").stdout.splitlines()

        assert len(lines) == 2
        assert lines[-1].endswith(f"  KeyError: {'x' * 190}...")
        (row,) = trained_project.json("rollouts", "--run", "runs/demo", "--limit", "1")["rollouts"]
        assert row["error"] == error

    def test_explain_looks_for_the_rollout_in_all_runs(self, trained_project: Project) -> None:
        rollout = trained_project.json("rollouts", "--run", "runs/demo", "--phase", "train")["rollouts"][0][
            "rollout_id"
        ]

        done = trained_project.run("explain", rollout)

        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Rollout {rollout}")
        assert done.stderr == "Run runs/demo\n"

    def test_explain_takes_the_latest_of_several_runs_that_have_it(self, trained_project: Project) -> None:
        assert trained_project.json("rollouts")["rollouts"][0]["step"] == 0
        rollout = trained_project.json("rollouts", "--run", "runs/demo", "--step", "0")["rollouts"][0]["rollout_id"]

        assert trained_project.run("explain", rollout).stderr == "Run runs/demo-evaluation\n"

    def test_a_rollout_that_no_run_has_is_said_so_with_the_option_that_names_a_run(
        self, trained_project: Project
    ) -> None:
        (trained_project.path / "runs/demo-evaluation/spangrad.db").write_bytes(b"no database" * 100)

        error = fail(trained_project, "explain", "train-9")

        assert "No run under runs has a rollout 'train-9'" in error
        assert "demo-evaluation/spangrad.db" in error, "a run that cannot be read is named"
        assert "--run" in error

    def test_a_run_that_lacks_the_rollout_is_named_with_how_to_look_in_the_others(
        self, trained_project: Project
    ) -> None:
        (trained_project.path / "runs/demo").rename(trained_project.path / "runs/my demo")

        assert fail(trained_project, "explain", "train-9", "--run", "runs/my demo") == (
            "error: runs/my demo has no rollout 'train-9'\n"
            "  -> Leave --run out to look in all runs, or see which it has: spangrad rollouts --run 'runs/my demo'\n"
        )

    def test_a_phase_that_is_none_lists_those_there_are(self, trained_project: Project) -> None:
        assert "There is no phase 'trian'\n  -> Name one of collect, evaluate, train" in fail(
            trained_project, "rollouts", "--phase", "trian"
        )
        assert trained_project.json("rollouts", "--phase", "collect") == {"rollouts": []}
