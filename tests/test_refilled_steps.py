"""DAPO's dynamic sampling: other tasks in the place of groups with nothing to tell, counted, in order, and resumed."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project

from spangrad.training import load_config

REWARD = """\
def reward(task, rollout):
    return float(rollout.id.endswith(("-0", "-2"))) if task["a"] % 2 else 0.5
"""

HANGING = """\
    global CLIENT, BEGUN
    import asyncio
    import os
    import sys

    BEGUN += rollout.id.startswith("train-00001")
    if BEGUN > 20 and "HANG" in os.environ:
        print("hanging", file=sys.stderr, flush=True)
        await asyncio.sleep(600)
"""
"""In the second round of the first step the agent stops working, if it is told to."""


@pytest.fixture
def half_telling(project: Project) -> Project:
    """16 tasks, of which 8 give all their rollouts the same reward; a step wants four that do not."""
    text = (project.path / "agent.py").read_text()
    start = text.index("def reward")
    (project.path / "agent.py").write_text(f"{text[:start]}{REWARD}\n\n{text[text.index('def train') :]}")
    project.edit("checkpoint_every = 2", "checkpoint_every = 2\nrefill_rounds = 6")
    project.edit('heldout = { bigger = "agent:heldout" }', "")
    project.edit("steps = 4", "steps = 2")
    return project


def steps_of(project: Project, run: str = "demo") -> list[Any]:
    return [row for row in project.metrics(run) if row["kind"] == "step"]


def task_of(rollout_id: str) -> str:
    return rollout_id.removeprefix("train-")[len("00001-") :].rpartition("-")[0]


def drawn(project: Project, step: int, run: str = "demo") -> list[str]:
    """The tasks of a step (as they stand in ids), each once, in the order they were begun."""
    options = ("--run", f"runs/{run}", "--step", str(step), "--limit", "500")
    rollouts = project.json("rollouts", *options)["rollouts"]
    return list(dict.fromkeys(task_of(row["rollout_id"]) for row in rollouts))


def test_a_step_draws_further_tasks_until_enough_groups_have_something_to_tell(half_telling: Project) -> None:
    done = half_telling.run("train", "train.toml")
    assert done.returncode == 0, done.stderr

    for step in steps_of(half_telling):
        tasks = drawn(half_telling, step["step"])
        assert step["rollouts"] == 4 * len(tasks)
        assert step["refill"]["groups_discarded"] == len(tasks) - 4
        assert step["refill"]["groups_discarded"] == sum(int(task[0]) % 2 == 0 for task in tasks)
        assert step["refill"]["groups_lacking"] == 0
        # The batch is the four groups with a signal alone: the others do not thin it out.
        assert (step["lightningrl"]["groups"], step["lightningrl"]["zero_variance_groups"]) == (4, 0)
        assert step["lightningrl"]["trained_rollouts"] == 16
        assert step["refill"]["rounds"] > 0
    assert "groups have nothing to learn from" not in done.stderr


def test_the_reward_that_is_shown_is_that_of_all_draws(half_telling: Project) -> None:
    half_telling.edit("else 0.5", "else 1.0", file="agent.py")
    done = half_telling.run("train", "train.toml")
    shown = re.findall(r"step \d rollouts: (\d+)/\1 .*reward (\d\.\d\d)", done.stderr, flags=re.MULTILINE)
    steps = steps_of(half_telling)
    assert shown == [(str(step["rollouts"]), f"{step['reward_mean']:.2f}") for step in steps]
    assert any(step["reward_mean"] > 0.55 for step in steps)  # the draws differ


def test_no_task_comes_again_before_all_have_had_their_turn(half_telling: Project) -> None:
    half_telling.json("train", "train.toml")

    order = [task for step in (1, 2) for task in drawn(half_telling, step)]

    assert len(set(order[:16])) == len(order[:16])


def test_discarded_groups_are_in_the_ledger_with_the_reason(half_telling: Project) -> None:
    half_telling.json("train", "train.toml")
    (even, *_) = [task for task in drawn(half_telling, 1) if int(task[0]) % 2 == 0]
    rows = half_telling.json("rollouts", "--step", "1", "--limit", "500")["rollouts"]
    rollout = next(row["rollout_id"] for row in rows if task_of(row["rollout_id"]) == even)

    (call,) = half_telling.json("explain", rollout)["attempts"][0]["calls"]

    assert (call["fate"], call["reason"]) == ("dropped", "zero_variance")
    assert call["detail"] == "all rollouts of the task had the same return; another task was drawn in its place"


def test_after_the_last_round_it_is_trained_on_what_there_is_and_said(half_telling: Project) -> None:
    half_telling.edit('if task["a"] % 2 else', 'if task["a"] == 1 else', file="agent.py")
    done = half_telling.run("train", "train.toml", "--set", "training.refill_rounds=1", "--set", "training.steps=1")
    assert done.returncode == 0, done.stderr

    (step,) = steps_of(half_telling)
    lacking = step["refill"]["groups_lacking"]
    assert lacking > 0
    assert step["refill"]["rounds"] == 1
    # The step keeps its size, so that few useful groups make a small step and not a blown-up one.
    assert (step["lightningrl"]["groups"], step["lightningrl"]["zero_variance_groups"]) == (4, lacking)
    said = f"Step 1: {lacking} groups have nothing to learn from after 1 rounds of further tasks"
    assert said in " ".join(done.stderr.split())


def test_a_step_ends_when_all_tasks_have_been_drawn(half_telling: Project) -> None:
    half_telling.edit('if task["a"] % 2 else 0.5', "* 0", file="agent.py")
    done = half_telling.run("train", "train.toml", "--set", "training.refill_rounds=99", "--set", "training.steps=1")
    assert done.returncode == 0, done.stderr

    (step,) = steps_of(half_telling)
    assert (step["rollouts"], step["refill"]["groups_lacking"], step["updates"]) == (64, 4, [])


def test_a_run_killed_in_the_middle_of_a_step_asks_for_the_same_rollouts_again(half_telling: Project) -> None:
    reference = half_telling.run("train", "train.toml", "--set", "name=whole")
    assert reference.returncode == 0, reference.stderr
    half_telling.edit("    global CLIENT\n", HANGING, file="agent.py")
    half_telling.edit("CLIENT = None\n", "CLIENT = None\nBEGUN = 0\n", file="agent.py")
    half_telling.edit("async def solve(task)", "async def solve(task, rollout)", file="agent.py")
    hanging = Project(half_telling.path, {"HANG": "1"})
    with hanging.started("train", "train.toml", "--set", "rollouts.concurrency=4") as process:
        assert process.stderr is not None
        assert any("hanging" in line for line in process.stderr)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)

    done = half_telling.run("train", "train.toml", "--resume")

    assert done.returncode == 0, done.stderr
    whole, resumed = steps_of(half_telling, "whole"), steps_of(half_telling)
    for same in ("rollouts", "refill", "reward_mean", "transitions"):
        assert [step[same] for step in resumed] == [step[same] for step in whole]
    assert 16 < resumed[0]["rollouts_reused"] < resumed[0]["rollouts"]
    for step in (1, 2):
        assert set(drawn(half_telling, step)) == set(drawn(half_telling, step, "whole"))


def test_the_documented_recipe_of_dapo_is_valid_and_whole(half_telling: Project) -> None:
    document = Path(__file__).parent.parent.joinpath("docs/estimators.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", document.partition("## DAPO")[2], flags=re.DOTALL)
    text = half_telling.config.read_text()
    half_telling.config.write_text(text[: text.index("[training]")] + recipe)

    done = half_telling.run("train", "train.toml", "--dry-run")

    assert done.returncode == 0, done.stderr
    config = load_config(half_telling.config).config
    assert config.algorithm.loss.options == {"clip_low": 0.2, "clip_high": 0.28}
    assert (config.algorithm.weighting.name, config.training.refill_rounds) == ("token", 10)
    assert config.rewards.overlong is not None


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["algorithm.estimator=rae"], "rae learns from groups of equal returns too"),
        (["algorithm.estimator=gae"], "gae learns from groups of equal returns too"),
        (["algorithm.estimator=reinforce_pp"], "reinforce_pp learns from groups of equal returns too"),
        (
            ["training.tasks_per_step=16"],
            "training.refill_rounds: a step takes all tasks there are, so no other could be drawn",
        ),
    ],
)
def test_a_refill_that_would_do_nothing_is_refused(half_telling: Project, settings: list[str], complaint: str) -> None:
    options = [part for setting in settings for part in ("--set", setting)]

    done = half_telling.run("train", "train.toml", "--dry-run", *options)

    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())
