"""`spangrad train` from the outside: what a run leaves, stopping and resuming, and every kind of bad input."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
from pathlib import Path

import pytest
from tests.conftest import Project

STRAY = """
import os
import urllib.request


async def stray():
    import asyncio
    import json

    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "1+1"}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
"""


def fail(project: Project, *arguments: str) -> str:
    """The error a command ends with; it must be one clear message and no traceback."""
    done = project.run(*(arguments or ("train", "train.toml")))
    assert done.returncode not in {0, 130}, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr[done.stderr.index("error: ") :]


def interrupted(project: Project, line: str, number: signal.Signals, *, status: int) -> str:
    """Trains until a line appears, sends the signal, and gives what was said after it."""
    with project.started("train", "train.toml") as process:
        assert process.stderr is not None
        for said in process.stderr:
            if line in said:
                process.send_signal(number)
                break
        rest = process.stderr.read()
        assert process.wait(timeout=60) == status
    return rest


class TestARun:
    def test_it_ends_with_a_table_and_leaves_every_file(self, project: Project) -> None:
        done = project.run("train", "train.toml")

        assert done.returncode == 0, done.stderr
        folder = project.path / "runs/demo"
        summary = json.loads((folder / "summary.json").read_text())
        before, after = summary["heldout_before"], summary["heldout_after"]
        assert "bigger" in done.stdout
        assert f"{before['success']:.2f} [{before['success_low']:.2f}, {before['success_high']:.2f}]" in done.stdout
        assert f"{after['success']:.2f} [{after['success_low']:.2f}, {after['success_high']:.2f}]" in done.stdout
        assert summary["steps"] == 4
        assert summary["seed"] == 5
        assert before["tasks"] == after["tasks"] == 16
        assert before["success"] < after["success"]
        assert summary["train_seconds"] > 0
        assert summary["peak_rss_mb"] > 10
        assert summary["versions"]["spangrad"] == "0.1.0"
        assert (folder / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
        assert [row.name for row in (folder / "checkpoints").iterdir()] == ["step-00004"]
        assert (folder / "model").is_dir()

    def test_every_call_is_in_the_ledger_with_its_reason(self, project: Project) -> None:
        summary = project.json("train", "train.toml")

        with sqlite3.connect(project.path / "runs/demo/spangrad.db") as database:
            calls = database.execute("SELECT count(*) FROM calls").fetchone()[0]
            rows = dict(database.execute("SELECT reason, count(*) FROM ledger GROUP BY reason").fetchall())
        assert calls == 4 * 16 + 2 * 16
        assert sum(rows.values()) == calls
        assert rows["evaluation"] == 32
        assert set(rows) <= {"evaluation", "trained", "zero_variance"}
        assert rows["trained"] == sum(
            record["lightningrl"]["trained_transitions"] for record in project.metrics() if record["kind"] == "step"
        )
        assert summary["counts"]["rollouts"] == 64

    def test_a_second_run_gets_a_folder_of_its_own_and_the_same_tasks(self, project: Project) -> None:
        first, second = project.json("train", "train.toml"), project.json("train", "train.toml")

        assert (first["run"], second["run"]) == ("demo", "demo-2")
        rewards = [
            [r["reward_mean"] for r in project.metrics(run) if r["kind"] == "step"] for run in ("demo", "demo-2")
        ]
        assert rewards[0] == rewards[1]

    def test_a_dry_run_checks_everything_and_writes_nothing(self, project: Project) -> None:
        assert project.json("train", "train.toml", "--dry-run")["tasks"] == 16
        assert not (project.path / "runs").exists()

    def test_what_a_rollout_was_is_explained(self, project: Project) -> None:
        project.json("train", "train.toml")
        rollout = project.json("rollouts", "--run", "runs/demo", "--phase", "train", "--step", "1")["rollouts"][0]

        done = project.run("explain", rollout["rollout_id"])
        explained = project.json("explain", rollout["rollout_id"], "--run", "runs/demo")

        assert done.returncode == 0, done.stderr
        (attempt,) = explained["attempts"]
        (call,) = attempt["calls"]
        assert attempt["status"] == "succeeded"
        assert call["fate"] in {"trained", "dropped"}
        assert call["episode_return"] == rollout["reward"]
        assert call["advantage"] is not None
        assert call["reason"] in done.stdout

    def test_plain_lines_without_a_terminal_name_phase_reward_and_speed(self, project: Project) -> None:
        done = project.run("train", "train.toml")

        assert re.search(r"\[1/4\] step 2 rollouts: 16/16 in [\d.]+s reward [\d.]+  tok/s \d+", done.stderr), (
            done.stderr
        )
        assert "\x1b" not in done.stderr


class TestStoppingAndResuming:
    def test_ctrl_c_saves_and_says_how_to_go_on(self, project: Project) -> None:
        project.edit("steps = 4", "steps = 400")

        said = interrupted(project, "step 3 learning", signal.SIGINT, status=130)

        assert "Go on with: spangrad train train.toml --runs runs --resume" in said
        (checkpoint,) = (project.path / "runs/demo/checkpoints").iterdir()
        assert int(checkpoint.name.removeprefix("step-")) >= 3

    def test_a_killed_run_goes_on_with_the_same_data_and_loses_no_finished_rollout(self, project: Project) -> None:
        reference = project.json("train", "train.toml", "--runs", "whole")
        # A step after the last checkpoint, which is step 2's.
        interrupted(project, "step 3 learning", signal.SIGKILL, status=-signal.SIGKILL)

        done = project.run("train", "train.toml", "--resume")

        assert done.returncode == 0, done.stderr
        steps = {r["step"]: r for r in project.metrics() if r["kind"] == "step"}
        assert list(steps) == [1, 2, 3, 4]
        assert steps[3]["rollouts_reused"] == 16
        whole = [json.loads(line) for line in (project.path / "whole/demo/metrics.jsonl").read_text().splitlines()]
        assert [steps[r["step"]]["reward_mean"] for r in whole if r["kind"] == "step"] == [
            r["reward_mean"] for r in whole if r["kind"] == "step"
        ]
        summary = json.loads((project.path / "runs/demo/summary.json").read_text())
        assert summary["heldout_after"]["success"] == reference["heldout_after"]["success"]

    def test_resuming_with_other_tasks_or_settings_is_refused(self, project: Project) -> None:
        project.json("train", "train.toml")
        project.edit("tasks_per_step = 4", "tasks_per_step = 2")

        message = fail(project, "train", "train.toml", "--resume")

        assert "tasks_per_step was 4, is 2" in message

    def test_resuming_what_never_ran_is_refused(self, project: Project) -> None:
        assert "no run named demo" in fail(project, "train", "train.toml", "--resume")

    def test_a_damaged_checkpoint_is_said_so(self, project: Project) -> None:
        project.json("train", "train.toml")
        (project.path / "runs/demo/checkpoints/step-00004/state.json").write_text("{")

        assert "is damaged" in fail(project, "train", "train.toml", "--resume")


class TestBadInput:
    def test_all_problems_of_the_file_are_listed_with_their_lines(self, project: Project) -> None:
        project.edit("steps = 4", 'steps = "four"\nsteps_per_epoch = 2')

        message = fail(project)

        assert "train.toml, line 14: training.steps: Input should be a valid integer (got 'four')" in message
        assert "train.toml, line 15: training.steps_per_epoch: unknown key" in message

    def test_an_unknown_option_of_the_backend_has_its_line(self, project: Project) -> None:
        project.edit("[training]", "[scripted]\nwindow = 3\n\n[training]")

        assert "train.toml, line 14: scripted.window: unknown key" in fail(project)

    def test_an_unknown_backend_lists_the_known_ones(self, project: Project) -> None:
        project.edit('backend = "scripted"', 'backend = "scripte"')

        message = fail(project)

        assert "Unknown backend 'scripte' (known: scripted, torch)" in message

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('run = "agent:solve"', 'run = "agnt:solve"', "agnt"),
            ('run = "agent:solve"', 'run = "agent:slove"', "slove"),
            ('run = "agent:solve"', 'run = "agent"', "module:function"),
            ('reward = "agent:reward"', 'reward = "agent:CLIENT"', "cannot be called"),
            ('train = "agent:train"', 'train = "none.jsonl"', "cannot be read"),
            ("tasks_per_step = 4", "tasks_per_step = 17", "a step takes 17 tasks, but there are only 16"),
            ("rollouts_per_task = 4", "rollouts_per_task = 1", "at least 2"),
            ("[training]", "[algorithm]\nestimator = 'gpro'\n\n[training]", "Unknown advantage estimator 'gpro'"),
            (
                "[training]",
                '[algorithm]\nkl = { name = "k3", coefficient = 0.1 }\n\n[training]',
                "train.toml, line 14: algorithm.kl: the backend scripted has no reference policy; it would do nothing",
            ),
            ("[training]", "[algorithm]\nloss = 'ppo'\n\n[training]", "Unknown loss 'ppo' (known: ppo_clip, dual_clip"),
        ],
    )
    def test_what_cannot_be_loaded_is_named_before_anything_starts(
        self, project: Project, old: str, new: str, message: str
    ) -> None:
        project.edit(old, new)

        assert message in fail(project)
        assert not (project.path / "runs").exists()

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("raise ValueError('no table named users')", "no table named users"),
            ("return None", "without calling the model"),
            ("import asyncio; await asyncio.Event().wait()", "timed_out"),
        ],
    )
    def test_an_agent_that_fails_every_time_ends_the_run_with_its_cause(
        self, project: Project, body: str, message: str
    ) -> None:
        project.edit("    global CLIENT\n", f"    {body}\n    global CLIENT\n", file="agent.py")
        project.edit("[training]", "[rollouts]\ntimeout = 0.5\n\n[training]")

        error = fail(project)

        assert re.search(message, error), error
        assert "All 16 rollouts failed" in error

    def test_a_model_that_is_not_routed_lists_the_routed_ones(self, project: Project) -> None:
        project.edit('model="policy"', 'model="gpt-4o"', file="agent.py")

        error = fail(project)

        assert "gpt-4o" in error
        assert "policy" in error

    @pytest.mark.parametrize("value", ["None", "float('nan')", "'good'"])
    def test_a_reward_that_is_no_number_ends_the_run_and_is_shown(self, project: Project, value: str) -> None:
        project.edit('return float(output == str(task["a"] + task["b"]))', f"return {value}", file="agent.py")

        error = fail(project)

        assert "no_reward" in error
        assert value.strip("'").removeprefix("float('").removesuffix("')") in error

    def test_one_failing_rollout_does_not_harm_the_others(self, project: Project) -> None:
        project.edit(
            "    global CLIENT\n",
            "    if task['a'] == task['b'] == 3:\n        raise OSError('x')\n    global CLIENT\n",
            file="agent.py",
        )

        summary = project.json("train", "train.toml")

        assert summary["counts"]["failed_rollouts"] == 4
        assert summary["steps"] == 4

    def test_equal_rewards_in_every_group_make_no_update_and_are_counted(self, project: Project) -> None:
        project.edit('return float(output == str(task["a"] + task["b"]))', "return 0.5", file="agent.py")

        done = project.run("train", "train.toml")

        assert done.returncode == 0, done.stderr
        steps = [r for r in project.metrics() if r["kind"] == "step"]
        assert [r["lightningrl"]["zero_variance_groups"] for r in steps] == [4, 4, 4, 4]
        assert [r["updates"] for r in steps] == [[], [], [], []]
        assert "nothing to learn" in done.stderr

    def test_a_port_in_use_is_named(self, project: Project) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]

            assert str(port) in fail(project, "train", "train.toml", "--port", str(port))

    def test_an_endpoint_without_token_ids_stops_before_the_optimiser(self, project: Project) -> None:
        from spangrad.testing import ScriptedEndpoint  # noqa: PLC0415  (starts a server; only this test wants one)

        with ScriptedEndpoint(lambda _: "3", token_ids=False) as endpoint:
            project.edit("[training]", f'[policy]\nendpoint = "{endpoint.base_url}"\n\n[training]')
            project.edit('heldout = { bigger = "agent:heldout" }', "")

            error = fail(project)

        assert re.search(r"0 of 16 calls .*have ids", error), error
        assert endpoint.base_url in error

    def test_a_model_folder_that_is_none_says_what_is_missing_and_leaves_no_run(self, project: Project) -> None:
        (project.path / "empty").mkdir()
        project.edit('backend = "scripted"', 'backend = "torch"')
        project.edit("[training]", '[policy]\nmodel = "empty"\n\n[training]')

        message = fail(project)

        assert "config.json" in message
        assert not (project.path / "runs").exists()

    def test_a_model_nobody_knows_is_said_so(self, project: Project) -> None:
        project.edit('backend = "scripted"', 'backend = "torch"')
        project.edit("[training]", '[policy]\nmodel = "smollm3-9000b"\n\n[training]')

        assert "smollm3-9000b" in fail(project)

    def test_calls_that_name_no_rollout_are_counted_and_have_their_row(self, project: Project) -> None:
        """A client that neither carries the rollout's key nor goes through the patched openai client."""
        project.edit("CLIENT = None\n", "CLIENT = None\n" + STRAY, file="agent.py")
        project.edit("    return answer.choices", "    await stray()\n    return answer.choices", file="agent.py")

        summary = project.json("train", "train.toml")

        with sqlite3.connect(project.path / "runs/demo/spangrad.db") as database:
            calls = database.execute("SELECT count(*) FROM calls WHERE rollout_id IS NULL").fetchone()[0]
            rows = database.execute("SELECT count(*) FROM ledger WHERE reason = 'orphan'").fetchone()[0]
            missing = database.execute(
                "SELECT count(*) FROM calls WHERE call_id NOT IN (SELECT call_id FROM ledger)"
            ).fetchone()[0]
        assert calls == rows == summary["counts"]["orphan_calls"] == 4 * 16 + 2 * 16
        assert missing == 0

    def test_a_runs_folder_that_cannot_be_written_is_said_so(self, project: Project) -> None:
        (project.path / "file").write_text("")

        assert "cannot be made" in fail(project, "train", "train.toml", "--runs", "file/runs")


def test_a_full_disk_ends_the_run_with_its_cause_and_keeps_what_is_written(project: Project, tmp_path: Path) -> None:
    """A file-size limit makes every write past it fail, as a full disk does."""
    project.edit("steps = 4", "steps = 400")
    project.edit(
        "CLIENT = None\n",
        "CLIENT = None\n\nimport resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n",
        file="agent.py",
    )

    error = fail(project)

    assert "disk" in error or "too large" in error or "full" in error
    with sqlite3.connect(tmp_path / "runs/demo/spangrad.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM calls").fetchone()[0] > 0
