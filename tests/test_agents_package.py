"""A program with a package of its own called `agents`, which is also the name of the OpenAI Agents SDK."""

from __future__ import annotations

import sys

import pytest
from tests.conftest import Project

PROGRAM = """\
import agents.solver

print(agents.solver.solve({"a": 2, "b": 3}))
"""
SOLVER = """\
from openai import OpenAI


def solve(task):
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    return OpenAI().chat.completions.create(model="policy", messages=messages).choices[0].message.content
"""
LINE = "is not the OpenAI Agents SDK"


@pytest.fixture
def program(project: Project) -> Project:
    (project.path / "program.py").write_text(PROGRAM)
    (project.path / "agents").mkdir()
    (project.path / "agents" / "__init__.py").touch()
    (project.path / "agents" / "solver.py").write_text(SOLVER)
    return project


@pytest.mark.parametrize("strict", ["0", "1"])
def test_its_agent_runs_and_one_line_says_that_this_is_not_the_sdk(program: Project, strict: str) -> None:
    program.environment["SPANGRAD_STRICT"] = strict

    done = program.run("run", "-n", "3", "--backend", "scripted", "--task", '{"a": 2, "b": 3}', "agents.solver:solve")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("calls 1  transitions 1") == 3
    assert [LINE in line for line in done.stderr.splitlines()].count(True) == 1, done.stderr


def test_so_does_a_program_started_for_each_rollout(program: Project) -> None:
    program.environment |= {"SPANGRAD_STRICT": "1", "SAID": str(program.path / "said.txt")}

    done = program.run("run", "--backend", "scripted", "--", "sh", "-c", f"'{sys.executable}' program.py 2>\"$SAID\"")

    assert done.returncode == 0, done.stderr
    assert "calls 1  transitions 1" in done.stdout
    (line,) = (program.path / "said.txt").read_text().splitlines()
    assert LINE in line


def test_who_asks_for_the_sdk_by_name_is_told_that_it_is_not_there(program: Project) -> None:
    program.environment |= {"SPANGRAD_STRICT": "1", "SPANGRAD_PLUGINS": "openai,openai-agents,scripted"}

    done = program.run("run", "--backend", "scripted", "--task", '{"a": 2, "b": 3}', "agents.solver:solve")

    assert done.returncode != 0
    assert LINE in done.stdout + done.stderr
