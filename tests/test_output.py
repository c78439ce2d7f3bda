"""Standard output and standard error: one JSON document with --json, and no tracebacks that mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Project

NOISE = """

import os
import subprocess
import sys


def noise(where):
    print(f"{where} prints")
    sys.stdout.write(f"{where} writes\\n")
    sys.__stdout__.write(f"{where} writes past redirections\\n")
    sys.__stdout__.flush()
    os.write(1, f"{where} writes to the descriptor\\n".encode())
    subprocess.run(["echo", f"{where} starts a program"], check=True)


noise("module")
"""
CLIENT_EACH = """
    from openai import AsyncOpenAI
    client = AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key)
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
    return answer.choices[0].message.content
"""


@pytest.fixture
def noisy(project: Project) -> Project:
    """Agent, reward and task functions print in every way there is, and so does a plug-in."""
    project.edit("CLIENT = None\n", f"CLIENT = None\n{NOISE}", file="agent.py")
    project.edit("    global CLIENT\n", "    global CLIENT\n    noise('agent')\n", file="agent.py")
    project.edit("def reward(task, output):\n", "def reward(task, output):\n    noise('reward')\n", file="agent.py")
    project.edit("def train():\n", "def train():\n    noise('tasks')\n", file="agent.py")
    project.edit(
        "    from spangrad", "    print('plug-in prints')\n    from spangrad", file="plugin/scripted_plugin.py"
    )
    project.edit("steps = 4", "steps = 1")
    return project


@pytest.mark.parametrize(
    ("arguments", "speakers"),
    [
        (("train", "train.toml"), {"plug-in", "module", "tasks", "agent", "reward"}),
        (("train", "train.toml", "--dry-run"), {"plug-in", "module", "tasks"}),
        (("eval", "train.toml"), {"plug-in", "module", "agent", "reward"}),
        (("run", "--config", "train.toml", "--task", '{"a": 1, "b": 2}'), {"plug-in", "module", "agent", "reward"}),
        (("plugins",), {"plug-in"}),
    ],
)
def test_json_is_alone_on_standard_output(noisy: Project, arguments: tuple[str, ...], speakers: set[str]) -> None:
    done = noisy.run(arguments[0], "--json", *arguments[1:])

    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    for speaker in speakers:
        assert f"{speaker} prints\n" in done.stderr
    if "agent" in speakers:
        for way in ("writes", "writes past redirections", "writes to the descriptor", "starts a program"):
            assert f"agent {way}\n" in done.stderr


def test_without_json_what_an_agent_prints_stays_where_it_was(noisy: Project) -> None:
    done = noisy.run("run", "--config", "train.toml", "--task", '{"a": 1, "b": 2}')

    assert "agent prints\n" in done.stdout
    assert "agent starts a program\n" in done.stdout


@pytest.mark.parametrize(
    ("shell", "status", "said"),
    [
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("2>&-", 0, ""),
        (">/dev/full", 1, "error: Standard output cannot be written: No space left on device\n"),
    ],
)
def test_an_output_that_takes_nothing_is_said_where_that_can_be(
    trained_project: Project, shell: str, status: int, said: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m spangrad rollouts --json {shell}"],
        cwd=trained_project.path,
        env={**os.environ, "PYTHONPATH": str(trained_project.path / "plugin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize("agent", ["shares the loop", "has its own loop", "keeps its clients"])
def test_clients_that_agents_make_and_forget_leave_no_tracebacks(project: Project, agent: str) -> None:
    """Each is collected as garbage some time, on whichever event loop runs then."""
    code = (
        CLIENT_EACH.replace("    messages", "    KEPT.append(client)\n    messages")
        if "keeps" in agent
        else CLIENT_EACH
    )
    project.edit("CLIENT = None\n", f"KEPT = []\n\n\nasync def go(task, rollout):{code}", file="agent.py")
    project.edit("async def solve(task):", "async def before(task):", file="agent.py")
    solve = (
        "\n\ndef solve(task, rollout):\n    import asyncio\n    return asyncio.run(go(task, rollout))\n"
        if "own" in agent
        else "\n\nasync def solve(task, rollout):\n    return await go(task, rollout)\n"
    )
    with (project.path / "agent.py").open("a") as file:
        file.write(solve)

    done = project.run("train", "train.toml")

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "never retrieved" not in done.stderr
    assert "Event loop is closed" not in done.stderr


def test_a_reward_too_large_for_statistics_is_named_with_its_rollout(project: Project) -> None:
    project.edit('return float(output == str(task["a"] + task["b"]))', "return 1e308", file="agent.py")

    done = project.run("train", "train.toml")

    assert done.returncode == 1
    assert "error: The reward 1e+308 of rollout evaluate-00000-bigger-1" in done.stderr
    assert "-> Scale rewards to a few units" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("--help",), ("train", "train.toml", "--dry-run"), ("plugins", "--json")]
)
def test_a_full_device_is_one_line_and_no_traceback(project: Project, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spangrad", *arguments],
            cwd=project.path,
            env={**os.environ, "PYTHONPATH": str(project.path / "plugin")},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: Standard output cannot be written: No space left on device\n"


def test_a_run_without_held_out_tasks_ends_without_an_empty_table(project: Project) -> None:
    project.edit('heldout = { bigger = "agent:heldout" }', "")
    project.edit("steps = 4", "steps = 1")
    done = project.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Trained in ")


def test_a_call_for_a_model_that_there_is_not_says_so_without_an_empty_place(project: Project) -> None:
    project.edit(
        "    answer =",
        "    try_other = CLIENT.chat.completions.create(model='nope', messages=messages)\n    await failing(try_other)\n    answer =",
        file="agent.py",
    )
    project.edit(
        "async def solve",
        "async def failing(call):\n    import openai\n\n    try:\n        await call\n    except openai.NotFoundError:\n        pass\n\n\nasync def solve",
        file="agent.py",
    )
    project.edit("steps = 4", "steps = 1")
    assert project.run("train", "train.toml").returncode == 0
    rollout = project.json("rollouts", "--phase", "train")["rollouts"][0]["rollout_id"]
    assert "model nope (not trained): error\n" in project.run("explain", rollout).stdout


def test_a_rollout_that_fails_after_its_reward_is_no_success(project: Project) -> None:
    project.edit("async def solve(task):", "async def solve(task, rollout):", file="agent.py")
    project.edit(
        "    return answer",
        "    if task['a'] >= 10:\n        rollout.reward(1.0)\n        raise KeyError(task['task_id'])\n    return answer",
        file="agent.py",
    )
    project.edit("steps = 4", "steps = 1")
    project.edit("agent:heldout", "agent:some")
    with (project.path / "agent.py").open("a") as file:
        file.write("\n\ndef some():\n    return heldout()[:3] + train()[:1]\n")
    summary = project.json("train", "train.toml")
    assert summary["heldout_after"]["tasks"] == 4
    assert summary["heldout_after"]["successes"] <= 1
