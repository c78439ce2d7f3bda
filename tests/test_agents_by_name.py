"""Training some of an agent's agents and not others, by name."""

from __future__ import annotations

import json

import pytest
from tests.conftest import Project

AGENTS = """\
from openai import AsyncOpenAI


async def ask(agent, question):
    messages = [{"role": "user", "content": question}]
    answer = await AsyncOpenAI().chat.completions.create(
        model="policy", messages=messages, max_tokens=8, extra_headers={"x-spangrad-agent": agent}
    )
    return answer.choices[0].message.content


async def solve(task):
    answer = await ask("writer", f"{task['a']}+{task['b']}")
    await ask("checker", f"{task['b']}+{task['a']}")
    return answer
"""


@pytest.fixture
def team(project: Project) -> Project:
    text = (project.path / "agent.py").read_text()
    (project.path / "agent.py").write_text(AGENTS + text[text.index("def reward") :])
    return project


def test_only_the_named_agents_calls_are_trained_on(team: Project) -> None:
    done = team.run("train", "train.toml", "--set", 'policy.train=["writer"]')
    assert done.returncode == 0, done.stderr
    steps = [row for row in team.metrics() if row["kind"] == "step"]
    assert [row["transitions"] for row in steps] == [16] * 4
    assert [row["excluded"] for row in steps] == [{"not_trained_agent": 16}] * 4

    (rollout, *_) = team.json("rollouts", "--phase", "train")["rollouts"]
    calls = team.json("explain", rollout["rollout_id"])["attempts"][0]["calls"]
    assert [(call["agent"], call["fate"] == "excluded") for call in calls] == [("writer", False), ("checker", True)]


def test_names_that_no_call_has_stop_the_run_and_say_which_there_are(team: Project) -> None:
    done = team.run("train", "train.toml", "--set", 'policy.train=["wirter"]')
    assert done.returncode != 0
    assert "policy.train names 'wirter', but the step's calls were made by 'checker', 'writer'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_only_some_steps_have_is_said_and_the_others_are_trained(team: Project) -> None:
    done = team.run("train", "train.toml", "--set", 'policy.train=["writer", "rewriter"]')
    assert done.returncode == 0, done.stderr
    assert (
        "policy.train names 'rewriter', but the step's calls were made by 'checker', 'writer'"
        in done.stderr + done.stdout
    )
    summary = json.loads((team.path / "runs/demo/summary.json").read_text())
    assert summary["counts"]["updates"] > 0


def test_an_empty_list_of_agents_is_refused(team: Project) -> None:
    done = team.run("train", "train.toml", "--dry-run", "--set", "policy.train=[]")
    assert done.returncode != 0
    assert "policy.train" in done.stderr
