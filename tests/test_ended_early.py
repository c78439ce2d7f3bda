"""Runs that a kill or an error ended in the middle of a step: what the store says of them, then and once they have gone on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project, new_project

AGENT = """\
import asyncio
import os
import sys

from openai import AsyncOpenAI


async def solve(task, rollout):
    async with AsyncOpenAI() as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1+1"}], max_tokens=8)
    if rollout.id != "train-00001-failing-0":
        return float(rollout.id.endswith("-1"))
    if os.environ.get("HANG") == str(rollout.attempt):
        print("hanging", file=sys.stderr, flush=True)
        await asyncio.sleep(600)
    raise KeyError("as ever")


def train():
    return [{"task_id": "failing"}]


def credit(transitions):
    if "BROKEN" in os.environ:
        raise ArithmeticError("overflow")
    return [transition.rollout_reward for transition in transitions]
"""
CONFIG = """\
name = "demo"
backend = "scripted"

[agent]
run = "agent:solve"

[tasks]
train = "agent:train"

[rollouts]
concurrency = 1

[failures]
failed = { policy = "retry", attempts = 2 }

[training]
steps = 1
tasks_per_step = 1
rollouts_per_task = 3
"""


@pytest.fixture
def failing(tmp_path: Path) -> Project:
    """A project in which the first of three rollouts always fails, and is tried twice."""
    project = new_project(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(CONFIG)
    return project


def killed_in(project: Project, attempt: int) -> None:
    """Trains until the rollout that fails is in that attempt, and kills the process there."""
    project.environment["HANG"] = str(attempt)
    with project.started("train", "train.toml", *(["--resume"] if attempt > 2 else [])) as process:
        assert process.stderr is not None
        assert any(line.startswith("hanging") for line in process.stderr)
    del project.environment["HANG"]


def resumed(project: Project) -> Any:
    """The metrics of the step, once the run has gone on."""
    done = project.run("train", "train.toml", "--resume")
    assert done.returncode == 0, done.stderr
    (step,) = [row for row in project.metrics() if row["kind"] == "step"]
    return step


def attempts(project: Project) -> list[Any]:
    found: list[Any] = project.json("explain", "train-00001-failing-0", "--run", "runs/demo")["attempts"]
    return found


def test_an_attempt_whose_process_was_killed_is_lost_and_is_none_of_those_that_a_policy_allows(
    failing: Project,
) -> None:
    killed_in(failing, 2)
    assert [attempt["status"] for attempt in attempts(failing)] == ["failed", "running"]
    assert "in use" not in failing.run("rollouts").stderr

    step = resumed(failing)

    first, second, third = attempts(failing)
    assert [one["status"] for one in (first, second, third)] == ["failed", "lost", "failed"]
    assert second["error"] == "The process that ran the rollout went away before it ended"
    assert [call["detail"] for call in second["calls"]] == ["made by attempt 2, not 3"]
    (call,) = third["calls"]
    assert call["detail"].startswith("given up after attempt 3: the agent failed: ")
    # Attempt 1 failed and was tried again; attempt 2 was lost; attempt 3 is the second of the two that the policy allows.
    assert step["failures"] == {"failed": {"dropped": 1, "retried": 1}, "infrastructure": {"retried": 1}}
    assert "running" not in {row["status"] for row in failing.json("rollouts")["rollouts"]}


def test_a_kill_in_the_first_attempt_leaves_the_agent_both_of_its_own(failing: Project) -> None:
    killed_in(failing, 1)
    killed_in(failing, 3)

    step = resumed(failing)

    # Lost, failed, lost, failed.
    assert [attempt["status"] for attempt in attempts(failing)] == ["lost", "failed", "lost", "failed"]
    assert step["failures"] == {"failed": {"dropped": 1, "retried": 1}, "infrastructure": {"retried": 2}}


def test_while_a_process_runs_its_attempts_are_no_other_processs_to_declare_lost(failing: Project) -> None:
    failing.environment["HANG"] = "1"
    with failing.started("train", "train.toml") as process:
        assert process.stderr is not None
        assert any(line.startswith("hanging") for line in process.stderr)
        assert "in use by process" in failing.run("train", "train.toml", "--resume").stderr
        assert [attempt["status"] for attempt in attempts(failing)] == ["running"]


def test_a_step_that_was_given_up_says_so_of_each_call_until_it_has_been_done_again(failing: Project) -> None:
    failing.environment["BROKEN"] = "1"
    setting = 'algorithm.credit={name = "function", call = "agent:credit"}'

    done = failing.run("train", "train.toml", "--set", setting)

    assert done.returncode != 0
    (call,) = failing.json("explain", "train-00001-failing-1")["attempts"][0]["calls"]
    assert (call["fate"], call["reason"], call["step"]) == ("dropped", "step_given_up", 1)
    assert call["detail"].startswith("the step was given up, and is done again with --resume: ")
    assert "overflow" in call["detail"]
    assert attempts(failing)[-1]["calls"][0]["reason"] == "rollout_failed", "why it was dropped anyway stays on record"
    del failing.environment["BROKEN"]
    done = failing.run("train", "train.toml", "--resume", "--set", setting)

    assert done.returncode == 0, done.stderr
    (call,) = failing.json("explain", "train-00001-failing-1")["attempts"][0]["calls"]
    assert (call["fate"], call["reason"], call["step"]) == ("trained", "trained", 1)
