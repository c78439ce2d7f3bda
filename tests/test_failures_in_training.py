"""Every kind of failure with every policy, from train.toml to the ledger: the rows of docs/failures.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project, new_project

AGENT = """\
import asyncio

from openai import AsyncOpenAI

from spangrad import InfrastructureError


async def solve(task, rollout):
    kind = task["kind"] if rollout.id.endswith("-0") and rollout.attempt == 1 else "fine"
    if kind == "empty":
        return "0"
    async with AsyncOpenAI() as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1+1"}], max_tokens=8)
    if kind != "fine" and not task.get("nothing"):
        rollout.reward(0.25, "way")
    if kind == "failed":
        raise KeyError("lost")
    if kind == "timed_out":
        await asyncio.sleep(60)
    if kind == "infrastructure":
        raise InfrastructureError("the database is down")
    return kind


def reward(output, rollout):
    return float("none") if output == "unrewarded" else float(rollout.id.endswith("-1"))


def train():
    kinds = ["failed", "timed_out", "infrastructure", "empty", "unrewarded"]
    return [{"task_id": kind, "kind": kind} for kind in kinds] + [{"task_id": "nothing", "kind": "failed", "nothing": True}]
"""
PLUGIN = """\
from spangrad.plugins import hookimpl
from spangrad.testing import ScriptedFactory


@hookimpl
def spangrad_register(register):
    register.backend("scripted", ScriptedFactory(lambda prompt: "2"))
"""
CONFIG = """\
name = "demo"
backend = "scripted"

[agent]
run = "agent:solve"
reward = "agent:reward"

[tasks]
train = "agent:train"

[rollouts]
timeout = 5.0

[failures]
{failures}

[training]
steps = 1
tasks_per_step = 6
rollouts_per_task = 3
"""
DECLARED = {
    "drop": '"drop"',
    "retry": '{ policy = "retry", attempts = 2 }',
    "penalise": '{ policy = "penalise", reward = -1.0 }',
    "keep": '"keep"',
}
KINDS = ("failed", "timed_out", "infrastructure", "empty", "unrewarded")
ROWS = [(kind, policy) for kind in KINDS for policy in DECLARED if kind != "empty" or policy in {"drop", "retry"}]
DOCUMENT = (Path(__file__).parent.parent / "docs/failures.md").read_text(encoding="utf-8")


def failing_project(path: Path, failures: str) -> Project:
    """A project in which the first rollout of each task fails at its first attempt, in a way of its own."""
    project = new_project(path)
    (path / "agent.py").write_text(AGENT)
    (path / "train.toml").write_text(CONFIG.format(failures=failures))
    (path / "plugin/scripted_plugin.py").write_text(PLUGIN)
    return project


@pytest.fixture(scope="module")
def trained_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """A project trained with one policy for all kinds that can have it; each is trained once."""
    made: dict[str, Project] = {}

    def train(policy: str) -> Project:
        if policy not in made:
            lines = [f"{kind} = {DECLARED[policy]}" for kind, able in ROWS if able == policy]
            made[policy] = failing_project(tmp_path_factory.mktemp(policy), "\n".join(lines))
            done = made[policy].run("train", "train.toml")
            assert done.returncode == 0, done.stderr
        return made[policy]

    return train


def step_of(project: Project) -> Any:
    (step,) = [row for row in project.metrics() if row["kind"] == "step"]
    return step


@pytest.mark.parametrize(("kind", "policy"), ROWS)
def test_each_kind_is_treated_as_declared_and_explained(
    trained_with: Callable[[str], Project], kind: str, policy: str
) -> None:
    project = trained_with(policy)
    attempts = project.json("explain", f"train-00001-{kind}-0", "--run", "runs/demo")["attempts"]
    figures = step_of(project)["failures"][kind]
    fates = [(call["fate"], call["reason"]) for call in attempts[-1]["calls"]]
    details = [call["detail"] for call in attempts[-1]["calls"]]
    more = kind == "failed"  # the task "nothing" fails too
    match policy:
        case "retry":
            assert figures == {"retried": 1 + more}
            assert [attempt["status"] for attempt in attempts][1:] == ["succeeded"]
            assert fates == [("trained", "trained")]
            assert all(call["reason"] == "other_attempt" for call in attempts[0]["calls"])
            assert [reward["name"] for reward in attempts[1]["rewards"]] == ["reward"], (
                "of the first attempt nothing counts"
            )
        case "drop":
            assert figures == {"dropped": 1 + more}
            reason = "no_reward" if kind == "unrewarded" else "rollout_failed"
            assert fates == [("dropped", reason)] * (kind != "empty")
        case "penalise":
            assert figures == {"penalised": 1 + more}
            assert fates == [("trained", "trained")]
            assert details[0].startswith("penalised: ")
            # Beside what it was given on its way: 0.25 - 1.
            assert attempts[0]["calls"][0]["episode_return"] == -0.75
            given = {r["name"]: (r["value"], r["source"], r["counted"]) for r in attempts[0]["rewards"]}
            assert given["failure"] == (-1.0, "failure policy", True)
        case "keep":
            assert figures == ({"kept": 1, "dropped": 1} if more else {"kept": 1})
            assert fates == [("trained", "trained")]
            assert details[0].startswith("kept with what it was given on its way: ")
            assert attempts[0]["calls"][0]["episode_return"] == 0.25


def test_a_rollout_to_be_kept_that_was_given_nothing_is_dropped_and_says_so(
    trained_with: Callable[[str], Project],
) -> None:
    shown = trained_with("keep").run("explain", "train-00001-nothing-0").stdout

    said = "dropped in step 1: rollout_failed (not kept, since it was given nothing on its way: the agent failed: "
    assert said in " ".join(shown.split())


def test_penalised_rollouts_have_failed_all_the_same(trained_with: Callable[[str], Project]) -> None:
    project = trained_with("penalise")

    assert step_of(project)["statuses"] == {
        "failed": 2, "infrastructure": 1, "no_call": 1, "no_reward": 1, "succeeded": 12, "timed_out": 1,
    }  # fmt: skip
    # 6 of 18 rollouts failed: a third. A limit below that leaves the step untrained.
    done = project.run("train", "train.toml", "--set", "training.max_failed=0.3", "--set", "name=strict")
    assert done.returncode == 0, done.stderr
    assert "Step 1 is not trained on: 6 of 18 rollouts failed" in done.stderr
    explained = project.json("explain", "train-00001-failed-0", "--run", "runs/strict")["attempts"][0]["calls"][0]
    assert (explained["fate"], explained["reason"]) == ("dropped", "batch_failed")
    assert explained["detail"].startswith("penalised: the agent failed: ")


def test_the_statistics_are_over_what_is_left_of_a_group(trained_with: Callable[[str], Project]) -> None:
    calls = [
        trained_with("drop").json("explain", f"train-00001-failed-{member}")["attempts"][0]["calls"][0]
        for member in (1, 2)
    ]

    # Rewards 1 and 0 are left: mean 1/2, deviation sqrt(1/2), so (1 - 1/2) / sqrt(1/2) = 0.7071.
    assert [call["advantage"] for call in calls] == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_a_gap_in_a_group_is_filled_with_a_new_rollout_of_its_task(tmp_path: Path) -> None:
    project = failing_project(tmp_path, 'groups = "refill"\ntimed_out = "keep"')
    done = project.run("train", "train.toml")
    assert done.returncode == 0, done.stderr

    step = step_of(project)
    # Five of the six first rollouts were dropped, and their tasks tried once more; the one that timed out was kept.
    assert (step["rollouts"], step["refill"]["replacements"]) == (18 + 5, 5)
    rollouts = {row["rollout_id"] for row in project.json("rollouts", "--limit", "100")["rollouts"]}
    assert {
        f"train-00001-{task}-3" for task in ("failed", "infrastructure", "empty", "unrewarded", "nothing")
    } < rollouts
    assert "train-00001-timed_out-3" not in rollouts
    assert step["lightningrl"]["trained_rollouts"] == 18
    assert step["refill"]["groups_unfilled"] == 0
    assert "not whole" not in done.stderr


def test_a_group_that_goes_on_failing_is_left_as_it_is_after_the_last_round(tmp_path: Path) -> None:
    project = failing_project(tmp_path, 'groups = "refill"\nrefill_limit = 2')
    project.edit('rollout.id.endswith("-0") and', 'not rollout.id.endswith(("-1", "-2")) and', file="agent.py")
    project.edit("tasks_per_step = 6", "tasks_per_step = 1\nmax_failed = 1.0")
    done = project.run("train", "train.toml")
    assert done.returncode == 0, done.stderr

    step = step_of(project)
    assert (step["rollouts"], step["refill"]["replacements"], step["refill"]["groups_unfilled"]) == (5, 2, 1)
    assert step["lightningrl"]["trained_rollouts"] == 2
    assert "Step 1: 1 groups are not whole, 0 of them without a rollout" in done.stderr


def test_a_group_of_which_nothing_is_left_is_counted_and_said(tmp_path: Path) -> None:
    project = failing_project(tmp_path, 'groups = "refill"\nrefill_limit = 1\ntimed_out = "keep"')
    project.edit(
        'rollout.id.endswith("-0") and', 'task["task_id"] == "failed" or rollout.id.endswith("-0") and', file="agent.py"
    )
    project.edit("tasks_per_step = 6", "tasks_per_step = 6\nmax_failed = 1.0")
    done = project.run("train", "train.toml")
    assert done.returncode == 0, done.stderr

    assert step_of(project)["refill"]["groups_unfilled"] == 1
    assert "Step 1: 1 groups are not whole, 1 of them without a rollout" in done.stderr


def test_a_resumed_run_goes_on_with_the_attempts_that_are_left_and_keeps_the_rest(tmp_path: Path) -> None:
    """A run that was killed after a first attempt had failed, and before the second had begun."""
    project = failing_project(tmp_path, "")
    assert project.run("train", "train.toml").returncode == 0
    shutil.rmtree(tmp_path / "runs/demo/checkpoints")
    (tmp_path / "runs/demo/summary.json").unlink()

    done = project.run("train", "train.toml", "--resume", "--set", f"failures.failed={DECLARED['retry']}")

    assert done.returncode == 0, done.stderr
    step = step_of(project)
    assert (step["rollouts"], step["rollouts_reused"]) == (18, 16)
    assert step["failures"]["failed"] == {"retried": 2}
    assert step["failures"]["timed_out"] == {"dropped": 1}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["failures.failed=penalise"], "--set failures.failed=penalise: failures.failed: 'penalise' needs reward"),
        (["failures.empty=keep"], "empty = 'keep' would do nothing: there is no token to train on"),
        (["failures.refill_limit=3"], 'refill_limit would do nothing without groups = "refill"'),
        (["rollouts.retries=2"], "rollouts.retries: unknown key"),
        (
            ['failures.failed={policy="penalise", reward=-1.0}', "rewards.weights={reward=1.0}"],
            "failures.failed: rewards.weights has no weight for 'failure', the penalty's name",
        ),
        (
            ["rewards.overlong={max_tokens=8, cache=4}", "rewards.weights={reward=1.0}"],
            "rewards.overlong: rewards.weights has no weight for 'overlong'",
        ),
        (["rewards.overlong={max_tokens=8, cache=9}"], "cache is 9, more than max_tokens = 8"),
        (
            [
                "failures.groups=refill",
                'rewards.judge={endpoint="http://127.0.0.1:1/v1", model="m", criteria="c", relative=true}',
            ],
            "failures.groups: rewards.judge compares a group once; rollouts added later could not be judged",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, settings: list[str], complaint: str) -> None:
    project = failing_project(tmp_path, "")
    options = [part for setting in settings for part in ("--set", setting)]

    done = project.run("train", "train.toml", "--dry-run", *options)

    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())


def test_the_documents_example_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n\[failures\]\n(.*?)```", DOCUMENT, flags=re.DOTALL)

    done = failing_project(tmp_path, example).run("train", "train.toml", "--dry-run")

    assert done.returncode == 0, done.stderr


def test_the_document_has_a_row_for_each_kind_with_each_policy() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", DOCUMENT, flags=re.MULTILINE)

    assert rows == ROWS
