"""Rollouts of the next step while this one is learnt from: they do run then, and nothing of them is lost or taken for another's."""

from __future__ import annotations

import json
import signal
from contextlib import closing

import pytest
from tests.conftest import Project

from spangrad.store import open_store

PLUGIN = """\
import asyncio
import os

from spangrad.plugins import hookimpl

PER_STEP = 16


class Waiting:
    '''Updates end only once the next step's first call has come: without overlap it never would.'''

    def __init__(self, policy, steps):
        update = policy.learner.update

        async def wait_and_update(batch):
            done = len(policy.learner.updates) + 1
            if done < steps:
                while policy.sampler.started <= done * PER_STEP:
                    await asyncio.sleep(0.01)
            return await update(batch)

        policy.learner.update = wait_and_update


@hookimpl
def spangrad_register(register):
    from spangrad.testing import ScriptedFactory, arithmetic_script

    class Factory(ScriptedFactory):
        def create(self, options, **others):
            backend = super().create(options, **others)
            Waiting(backend.policies["policy"], int(os.environ["STEPS"]))
            return backend

    register.backend("scripted", Factory(arithmetic_script(lambda version: 0.35 + 0.05 * version)))
"""


@pytest.fixture
def overlapping(project: Project) -> Project:
    """Four steps of sixteen rollouts; an update waits for a call of the step after it."""
    (project.path / "plugin/scripted_plugin.py").write_text(PLUGIN)
    project.edit('heldout = { bigger = "agent:heldout" }\n', "")
    project.edit("steps = 4", "steps = 4\noverlap = true")
    project.environment["STEPS"] = "4"
    return project


def test_the_next_steps_rollouts_run_while_this_one_is_learnt_from(overlapping: Project) -> None:
    done = overlapping.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    assert "belong to no rollout" not in done.stdout + done.stderr
    steps = [row for row in overlapping.metrics() if row["kind"] == "step"]
    assert [row["transitions"] for row in steps] == [16] * 4
    assert [row["policy_versions"] for row in steps] == [{"policy": number} for number in (1, 2, 3, 4)]
    assert all(row["idle"]["sampler_seconds"] >= 0 and row["idle"]["learner_seconds"] >= 0 for row in steps)
    # The first call of a step came before the update of the step before it had been made, and none came before that step.
    with closing(open_store(overlapping.path / "runs/demo/spangrad.db")) as store:
        for step in (1, 2, 3, 4):
            calls = [call for record in store.rollouts(step=step) for call in store.calls(record.rollout_id)]
            versions = {call.policy_version for call in calls}
            assert min(version for version in versions if version is not None) == max(0, step - 2)
            assert versions <= {step - 2, step - 1}


def test_every_call_of_every_step_has_its_place_in_the_ledger(overlapping: Project) -> None:
    assert overlapping.run("train", "train.toml").returncode == 0
    summary = json.loads((overlapping.path / "runs/demo/summary.json").read_text())
    assert summary["counts"]["calls_in_store"] == summary["counts"]["ledger_in_store"] == 64
    assert not any(name.endswith("_calls") for name in summary["counts"])


def test_a_run_that_is_killed_goes_on_with_the_rollouts_that_had_been_begun(overlapping: Project) -> None:
    overlapping.edit("checkpoint_every = 2", "checkpoint_every = 1")
    # the process is killed in the middle of the second step's update, when calls of the third have come
    overlapping.edit(
        "            return await update(batch)",
        "            if done == 2 and os.environ.get('KILL'):\n                os.kill(os.getpid(), 9)\n"
        "            return await update(batch)",
        file="plugin/scripted_plugin.py",
    )
    overlapping.environment["KILL"] = "1"
    assert overlapping.run("train", "train.toml").returncode == -signal.SIGKILL
    del overlapping.environment["KILL"]
    overlapping.environment["STEPS"] = "0"
    done = overlapping.run("train", "train.toml", "--resume")
    assert done.returncode == 0, done.stderr
    steps = [row for row in overlapping.metrics() if row["kind"] == "step"]
    assert [row["transitions"] for row in steps] == [16] * 4
    assert steps[1]["rollouts_reused"] == 16
    summary = json.loads((overlapping.path / "runs/demo/summary.json").read_text())
    assert not any(name.endswith("_calls") for name in summary["counts"])


def test_rollouts_that_cannot_be_end_the_run_with_their_error(overlapping: Project) -> None:
    overlapping.edit(
        "    messages = [",
        "    import os\n    if os.environ['STEPS'] == '-1':\n        raise ValueError('broken')\n    messages = [",
        file="agent.py",
    )
    overlapping.environment["STEPS"] = "-1"
    done = overlapping.run("train", "train.toml")
    assert done.returncode != 0
    assert "ValueError: broken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["training.steps=1"], "training.overlap: there is no step after the first; it would do nothing"),
        (
            ["training.updates_per_step=2", "algorithm.max_staleness=1"],
            "with overlap a call is answered by a policy up to 2 versions older; raise it",
        ),
        (["sampling.top_p=0.9"], "the loss compares with the sampler's whole distribution, which this cuts"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(overlapping: Project, settings: list[str], complaint: str) -> None:
    done = overlapping.run("train", "train.toml", "--dry-run", *(part for text in settings for part in ("--set", text)))
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())


def test_it_makes_a_bound_on_staleness_and_corrections_meaningful(overlapping: Project) -> None:
    overlapping.edit(
        "ScriptedFactory):",
        "ScriptedFactory):\n        def __init__(self, script):\n            from spangrad.backend import CORRECTIONS, Capabilities\n"
        "            super().__init__(script, capabilities=Capabilities(corrections=frozenset(CORRECTIONS)))\n",
        file="plugin/scripted_plugin.py",
    )
    for setting in ("algorithm.max_staleness=1", 'algorithm.corrections=["truncated_is"]'):
        done = overlapping.run("train", "train.toml", "--dry-run", "--set", setting)
        assert done.returncode == 0, done.stderr
        done = overlapping.run("train", "train.toml", "--dry-run", "--set", setting, "--set", "training.overlap=false")
        assert done.returncode == 2
        assert "would do nothing" in done.stderr
