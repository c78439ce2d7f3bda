"""A small project as a user would have it: an agent, tasks, a train.toml, and a scripted backend installed beside it."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spangrad.training import Preparation

AGENT = """\
from openai import AsyncOpenAI

CLIENT = None


async def solve(task):
    global CLIENT
    CLIENT = CLIENT or AsyncOpenAI()
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    answer = await CLIENT.chat.completions.create(model="policy", messages=messages, max_tokens=8)
    return answer.choices[0].message.content


def reward(task, output):
    return float(output == str(task["a"] + task["b"]))


def train():
    return [{"task_id": f"{a}+{b}", "a": a, "b": b} for a in range(4) for b in range(4)]


def heldout():
    return [{"task_id": f"{a}+{b}", "a": a, "b": b} for a in range(10, 18) for b in range(2)]
"""

CONFIG = """\
name = "demo"
seed = 5
backend = "scripted"

[agent]
run = "agent:solve"
reward = "agent:reward"

[tasks]
train = "agent:train"
heldout = { bigger = "agent:heldout" }

[training]
steps = 4
tasks_per_step = 4
rollouts_per_task = 4
checkpoint_every = 2
"""

PLUGIN = """\
from spangrad.plugins import hookimpl


@hookimpl
def spangrad_register(register):
    from spangrad.testing import ScriptedFactory, arithmetic_script

    register.backend("scripted", ScriptedFactory(arithmetic_script(lambda version: 0.35 + 0.15 * version)))
"""


@dataclass
class Project:
    """A folder with an agent in it, and the command line run inside it."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.path / "train.toml"

    def edit(self, old: str, new: str, *, file: str = "train.toml") -> None:
        """Replaces text of a file, which must be there."""
        text = (self.path / file).read_text()
        assert old in text
        (self.path / file).write_text(text.replace(old, new))

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command, running; killed at the end of the block if it still is."""
        with subprocess.Popen(
            [sys.executable, "-m", "spangrad", *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(self.path / "plugin"), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, to its end."""
        with self.started(*arguments) as process:
            out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        """What the command prints with --json at its end."""
        return self.json_of(*arguments, "--json")

    def json_of(self, *arguments: str) -> Any:
        """The JSON the command prints."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def metrics(self, run: str = "demo") -> list[Mapping[str, Any]]:
        """The run's metrics."""
        text = (self.path / "runs" / run / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def new_project(path: Path) -> Project:
    """A fresh project in a folder, whose backend follows a script and gets better with every published version."""
    (path / "agent.py").write_text(AGENT)
    (path / "train.toml").write_text(CONFIG)
    plugin = path / "plugin"
    info = plugin / "scripted_plugin-0.1.dist-info"
    info.mkdir(parents=True)
    (plugin / "scripted_plugin.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[spangrad]\nscripted = scripted_plugin\n")
    return Project(path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project of the test's own."""
    return new_project(tmp_path)


@pytest.fixture(scope="session")
def project_trained_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a finished run, and later an evaluation of it; tests copy it."""
    project = new_project(tmp_path_factory.mktemp("trained"))
    project.json("train", "train.toml")
    project.json("eval", "train.toml")
    return project


@pytest.fixture
def trained_project(project_trained_once: Project, tmp_path: Path) -> Project:
    """A copy of a project with a finished run of 4 steps, `runs/demo`, and an evaluation, `runs/demo-evaluation`."""
    shutil.copytree(project_trained_once.path, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Modules of an example by name, forgotten afterwards; the test's file names the example and them: EXAMPLE = (folder, *modules)."""
    folder, *names = request.module.EXAMPLE
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


IN_EVERY_FILE = {
    "agent": 'run = "agent:solve"\nreward = "agent:reward"\n',
    "tasks": 'train = "agent:train"\n',
    "training": "steps = 1\ntasks_per_step = 4\n",
}
"""What every train.toml has."""

USERS_MODULE = """\
def solve(task): ...
def reward(task, output): ...
def train(): return [{"number": number} for number in range(32)]
def brief(calls, spans): ...
"""

DryRun = Callable[..., "Preparation"]


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DryRun:
    """Checks settings as a dry run does: those given, and of those every train.toml has the ones they lack."""
    for name in ("agent.py", "my_rules.py"):
        (tmp_path / name).write_text(USERS_MODULE)
    program = tmp_path / "bin/pytest"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for key in ("JUDGE_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(key, "a key")

    def run(settings: str) -> Preparation:
        from spangrad.plugins import load_plugins  # noqa: PLC0415 - other tests need neither
        from spangrad.training import prepare  # noqa: PLC0415 - as above

        given = tomllib.loads(settings)
        for table, lines in IN_EVERY_FILE.items():
            if table not in given:
                settings += f"\n[{table}]\n{lines}"
            else:
                lacking = [line for line in lines.splitlines() if line.split(" = ")[0] not in given[table]]
                settings = re.sub(rf"^\[{table}\]$", "\n".join([f"[{table}]", *lacking]), settings, flags=re.MULTILINE)
        path = tmp_path / "train.toml"
        path.write_text(settings)
        return prepare(path, [], load_plugins())

    return run
