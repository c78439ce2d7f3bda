"""Agents and reward functions are found, and what is wrong with them is said."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spangrad.errors import AgentError, TaskError
from spangrad.rollouts import CommandAgent, FunctionAgent, Task, load_agent, load_function, load_reward


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def loaded(spec: str, folder: Path) -> FunctionAgent:
    agent = load_agent(spec, folder)
    assert isinstance(agent, FunctionAgent)
    return agent


def test_a_function_is_loaded_from_the_folder_and_sys_path_is_as_before(tmp_path: Path) -> None:
    before = list(sys.path)
    agent = loaded("agent_one:solve", write(tmp_path, agent_one="def solve(task):\n    return task['x'] + 1\n"))
    assert agent.function({"x": 1}) == 2
    assert (agent.asynchronous, agent.wants_rollout, agent.name) == (False, False, "agent_one:solve")
    assert sys.path == before


def test_two_folders_may_hold_modules_of_the_same_names(tmp_path: Path) -> None:
    agent = "import words_here\ndef solve(task):\n    return words_here.WORD\n"
    first = write(tmp_path / "a", same_agent=agent, words_here="WORD = 'first'")
    second = write(tmp_path / "b", same_agent=agent, words_here="WORD = 'second'")
    one, two = load_function("same_agent:solve", first), load_function("same_agent:solve", second)
    assert [one({}), two({}), one({})] == ["first", "second", "first"]


def test_a_function_may_import_its_neighbours_late(tmp_path: Path) -> None:
    agent = "def solve(task):\n    import late_words\n    return late_words.WORD\n"
    first = write(tmp_path / "a", late_agent=agent, late_words="WORD = 'first'")
    second = write(tmp_path / "b", late_agent=agent, late_words="WORD = 'second'")
    one, two = load_function("late_agent:solve", first), load_function("late_agent:solve", second)
    assert [one({}), two({}), one({}), two({})] == ["first", "second", "first", "second"]


async def test_an_async_function_may_import_its_neighbours_late_while_others_run(tmp_path: Path) -> None:
    text = "import asyncio\nasync def solve(task):\n    await asyncio.sleep(0)\n    import async_words\n    return async_words.WORD\n"
    function = load_function("async_agent:solve", write(tmp_path, async_agent=text, async_words="WORD = 1"))
    before = list(sys.path)
    assert await asyncio.gather(*(function({}) for _ in range(10))) == [1] * 10
    assert sys.path == before


def test_a_loaded_module_stays_importable_for_pickling_and_type_hints(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nclass Answer: ...\ndef solve(task) -> Answer:\n    return Answer()\n"
    function = load_function("picklable_agent:solve", write(tmp_path, picklable_agent=text))
    assert type(function({})).__module__ in sys.modules
    assert inspect.signature(function).return_annotation == "Answer"


def test_packages_and_attributes_are_followed(tmp_path: Path) -> None:
    write(
        tmp_path / "nested_pkg",
        __init__="",
        deep="class Agents:\n    @staticmethod\n    def solve(task):\n        return 7\n",
    )
    assert load_function("nested_pkg.deep:Agents.solve", tmp_path)({}) == 7


def test_an_installed_module_is_found_too(tmp_path: Path) -> None:
    assert load_function("posixpath:basename", tmp_path)("a/b") == "b"


@pytest.mark.parametrize(
    ("text", "takes_rollout"),
    [
        ("def solve(task): ...", False),
        ("def solve(task, rollout): ...", True),
        ("def solve(task, r): ...", True),
        ("def solve(task, rollout=None): ...", True),
        ("def solve(task, temperature=0.5): ...", False),
        ("def solve(*args): ...", False),
        ("class Agent:\n    def __call__(self, task, rollout): ...\nsolve = Agent()", True),
    ],
)
def test_the_rollout_is_passed_to_agents_that_take_it(tmp_path: Path, text: str, *, takes_rollout: bool) -> None:
    assert loaded("signature_agent:solve", write(tmp_path, signature_agent=text)).wants_rollout is takes_rollout


@pytest.mark.parametrize(
    "text",
    [
        "async def solve(task): ...",
        "import functools\nasync def base(task, k): ...\nsolve = functools.partial(base, k=1)",
        "class Agent:\n    async def __call__(self, task): ...\nsolve = Agent()",
        "class Agent:\n    async def run(self, task): ...\nsolve = Agent().run",
    ],
)
def test_every_form_of_async_agent_is_recognised(tmp_path: Path, text: str) -> None:
    assert loaded("form_agent:solve", write(tmp_path, form_agent=text)).asynchronous


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def solve(): ...", r"its parameters are \(\)"),
        ("def solve(task, rollout, third): ...", "its parameters are"),
        ("def solve(task, *, model): ...", "its parameters are"),
        ("def solve(task):\n    yield 1", "generator"),
        ("async def solve(task):\n    yield 1", "generator"),
        ("solve = 3", "type int, which cannot be called"),
        ("def slove(task): ...", "has no 'solve'. It has: slove"),
        ("def solve(task:\n", "SyntaxError"),
        (
            "import not_a_module_anywhere",
            "ModuleNotFoundError: No module named 'not_a_module_anywhere' .*line 1.*Install",
        ),
        ("x = 1\nraise RuntimeError('at import')", r"RuntimeError: at import \(.*faulty_agent.py, line 2\)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_faulty_agent_is_an_agent_error_that_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        load_agent("faulty_agent:solve", write(tmp_path, faulty_agent=text))


def test_a_corrected_file_is_read_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError):
        load_agent("corrected_agent:solve", write(tmp_path, corrected_agent="1 / 0"))
    write(tmp_path, corrected_agent="def solve(task):\n    return 1\n")
    os.utime(tmp_path / "corrected_agent.py", ns=(1, 1))
    assert loaded("corrected_agent:solve", tmp_path).function({}) == 1


@pytest.mark.parametrize("spec", ["no_such_module:solve", "no_such.package:solve"])
def test_a_module_that_is_nowhere_is_an_agent_error_with_the_folder(tmp_path: Path, spec: str) -> None:
    with pytest.raises(AgentError, match="is neither in") as caught:
        load_agent(spec, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_file_named_like_a_module_of_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="Rename"):
        load_agent("random:solve", write(tmp_path, random="def solve(task): ..."))


@pytest.mark.parametrize("spec", ["agent:", ":solve", "a-b:solve", "agent:solve:x", "agent"])
def test_a_spec_of_the_wrong_form_is_refused(tmp_path: Path, spec: str) -> None:
    with pytest.raises(AgentError):
        load_agent(spec, tmp_path)


def test_errors_can_be_of_another_class_and_noun(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task function's module"):
        load_function("no_such_module:tasks", tmp_path, noun="task function", error=TaskError)


def test_a_function_itself_is_an_agent() -> None:
    async def solve(task: Any, rollout: Any) -> None: ...

    agent = load_agent(solve, Path())
    assert isinstance(agent, FunctionAgent)
    assert agent.asynchronous
    assert agent.wants_rollout


def test_a_command_line_is_split_like_a_shell_does(tmp_path: Path) -> None:
    agent = load_agent(f"{sys.executable} -c 'print(1)'", tmp_path)
    assert isinstance(agent, CommandAgent)
    assert agent.argv == (sys.executable, "-c", "print(1)")
    assert agent.folder == tmp_path.resolve()


def test_a_program_of_the_folder_is_found_there(tmp_path: Path) -> None:
    program = tmp_path / "agent.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    agent = load_agent(["./agent.sh", "--fast"], tmp_path)
    assert isinstance(agent, CommandAgent)
    assert Path(agent.argv[0]).samefile(program)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no-such-program --x", "no program 'no-such-program'"),
        ("", "no command line"),
        ([], "no command line"),
        ("python 'unclosed", "quotes"),
    ],
)
def test_a_command_that_cannot_run_is_an_agent_error(tmp_path: Path, spec: str | list[str], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        load_agent(spec, tmp_path)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("def reward(task, output): ...", ("task", "output")),
        ("def reward(output): ...", ("output",)),
        ("def reward(rollout, task, scale=2): ...", ("task", "rollout")),
        ("def reward(**given): ...", ("task", "output", "rollout")),
        ("async def reward(output, task, rollout): ...", ("task", "output", "rollout")),
    ],
)
def test_a_reward_function_gets_what_it_declares(tmp_path: Path, text: str, takes: tuple[str, ...]) -> None:
    reward = load_reward("judge:reward", write(tmp_path, judge=text))
    assert reward.takes == takes
    assert reward.asynchronous is text.startswith("async")


@pytest.mark.parametrize("text", ["def reward(task, answer): ...", "def reward(task, output, /): ..."])
def test_a_reward_function_with_other_parameters_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(AgentError, match="any of task, output, rollout"):
        load_reward("odd_judge:reward", write(tmp_path, odd_judge=text))


def test_a_partial_is_a_reward_function() -> None:
    def reward(output: float, scale: float) -> float:
        return output * scale

    assert load_reward(functools.partial(reward, scale=2), Path()).takes == ("output",)


@pytest.mark.parametrize("data", [{1, 2}, float("nan"), {"x": object()}])
def test_a_task_must_be_json(data: object) -> None:
    with pytest.raises(TaskError, match="cannot be written as JSON"):
        Task("t1", data)


def test_a_task_needs_an_id() -> None:
    with pytest.raises(TaskError, match="empty"):
        Task("", {})
