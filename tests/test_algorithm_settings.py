"""[algorithm] of a train.toml reaches LightningRL: estimators, agents kept apart, what counts once, rewards by name."""

from __future__ import annotations

import pytest
from tests.conftest import Project

NAMED = 'model="policy", messages=messages, max_tokens=8, extra_headers={"x-spangrad-agent": name}'


def problem(project: Project, *settings: str) -> str:
    """What `train --dry-run` says is wrong."""
    done = project.run(
        "train", "train.toml", "--dry-run", *(word for setting in settings for word in ("--set", setting))
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("algorithm.per_agent=true", 'policy.train=["writer"]'),
            "algorithm.per_agent: policy.train names one agent only; it would do nothing",
        ),
        (
            ("algorithm.per_agent=true", "algorithm.estimator=rae"),
            "rae keeps each agent's calls apart anyway: per_agent = true would do nothing",
        ),
        (("algorithm.statistics=row",), "algorithm.statistics: Input should be 'rollout' or 'call'"),
        (
            ("algorithm.statistics=call", "algorithm.estimator=rloo"),
            "rloo compares a rollout with the other rollouts",
        ),
        (('algorithm.estimator={name="rae", beta=1}',), "Its options: alpha, initial"),
        (("training.rollouts_per_task=1", "algorithm.estimator=maxrl"), "maxrl compares rollouts of one task"),
    ],
    ids=["one agent", "rae per agent", "unknown unit", "rloo over calls", "unknown option", "too few rollouts"],
)
def test_settings_without_effect_or_sense_are_refused(project: Project, settings: tuple[str, ...], said: str) -> None:
    assert said in problem(project, *settings)


def test_a_run_by_several_rewards_with_agents_kept_apart_over_calls(project: Project) -> None:
    project.edit('model="policy", messages=messages, max_tokens=8', NAMED, file="agent.py")
    project.edit(
        "    messages =", '    name = "even" if task["b"] % 2 == 0 else "odd"\n    messages =', file="agent.py"
    )
    project.edit(
        'return float(output == str(task["a"] + task["b"]))',
        'return {"correct": output == str(task["a"] + task["b"]), "short": -0.01 * len(output)}',
        file="agent.py",
    )
    config = project.path / "train.toml"
    config.write_text(
        config.read_text()
        + "\n[rewards]\nweights = { correct = 1.0, short = 0.5 }\n"
        + '\n[algorithm]\nestimator = "gdpo"\nper_agent = true\nstatistics = "call"\n'
    )

    done = project.run("train", "train.toml", "--set", "training.steps=2")

    assert done.returncode == 0, done.stderr
    assert "there is only one" not in done.stderr
    steps = [record["lightningrl"] for record in project.metrics() if record["kind"] == "step"]
    assert sum(figures["trained_transitions"] for figures in steps) > 0
    assert {"agent/even/return_mean", "agent/odd/return_mean"} <= set().union(*steps)


@pytest.mark.parametrize("level", ["transition", "token"])
def test_gae_trains_on_a_single_rollout_of_each_task_goes_on_and_is_explained(project: Project, level: str) -> None:
    settings = [
        "--set", f"algorithm.estimator={{name = 'gae', level = '{level}', lam = 1.0, whiten = false}}",
        "--set", "training.rollouts_per_task=1",
    ]  # fmt: skip
    assert project.run("train", "train.toml", *settings, "--set", "training.steps=2").returncode == 0

    done = project.run("train", "train.toml", *settings, "--resume")

    assert done.returncode == 0, done.stderr
    steps = [record["lightningrl"] for record in project.metrics() if record["kind"] == "step"]
    assert [figures["trained_transitions"] for figures in steps] == [4, 4, 4, 4]
    rollouts = project.json("rollouts", "--phase", "train", "--step", "3")["rollouts"]
    told = [project.run("explain", row["rollout_id"]).stdout for row in rollouts]
    # the scripted value is the mean return of the step before
    value = f"{steps[1]['return_mean']:.4g}"
    assert len(told) == 4
    ending = {"transition": ")", "token": "; the advantage is the mean of its "}[level]
    assert all(f"trained in step 3 (value before the call {value}{ending}" in text for text in told)


def test_rae_trains_on_a_single_rollout_of_each_task(project: Project) -> None:
    done = project.run(
        "train", "train.toml", "--set", "algorithm.estimator=rae", "--set", "training.rollouts_per_task=1"
    )

    assert done.returncode == 0, done.stderr
    steps = [record["lightningrl"] for record in project.metrics() if record["kind"] == "step"]
    assert [figures["trained_transitions"] for figures in steps] == [4, 4, 4, 4]
