"""`spangrad gateway`: a model served to programs of their own, around code that stays unchanged."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AuthenticationError, OpenAI
from tests.conftest import Project

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PROGRAM = """\
import spangrad
from openai import OpenAI

client = OpenAI()
with spangrad.rollout(task_id="sums/1") as r:
    answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "2+3"}])
    r.reward(float(answer.choices[0].message.content == "5"))
print(r.id)
"""
LEAVING = """\
import os, spangrad

block = spangrad.rollout(task_id="left")
print(block.__enter__().id, flush=True)
os._exit(0)
"""


@dataclass
class Gateway:
    """The command while it runs, and what it said and how it ended afterwards."""

    said: str
    """Its standard output, once it serves."""
    stderr: str = ""
    status: int | None = None


@contextmanager
def serving(project: Project, *arguments: str, lines: int) -> Iterator[Gateway]:
    """The command from when it has said how it is called, in `lines` lines of standard output, to Ctrl-C."""
    with project.started("gateway", *arguments) as process:
        assert process.stdout is not None
        served = Gateway("".join(process.stdout.readline() for _ in range(lines)))
        yield served
        process.send_signal(signal.SIGINT)
        _, served.stderr = process.communicate(timeout=30)
        served.status = process.returncode


def program(project: Project, code: str, *, shell: str = "") -> str:
    """What a program prints that is run in a shell which has evaluated some lines first."""
    (project.path / "program.py").write_text(code)
    done = subprocess.run(
        ["sh", "-c", f"{shell}\nexec {sys.executable} program.py"],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": str(project.path / "plugin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fail(project: Project, *arguments: str) -> str:
    done = project.run("gateway", *arguments)
    assert done.returncode not in {0, 130}, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_program_finds_it_by_the_lines_it_prints_and_its_rollouts_are_recorded(project: Project) -> None:
    with serving(project, "--backend", "scripted", lines=2) as gateway:
        rollout = program(project, PROGRAM, shell=gateway.said)

    assert gateway.status == 0
    assert "Stopped; rollouts recorded in runs/gateway: 1" in gateway.stderr
    assert "answered too, from this machine" in gateway.stderr
    (row,) = project.json("rollouts")["rollouts"]
    assert (row["rollout_id"], row["phase"], row["status"]) == (rollout, "collect", "succeeded")
    (attempt,) = project.json("explain", rollout)["attempts"]
    assert [call["model"] for call in attempt["calls"]] == ["policy"]


def test_the_program_of_the_readme_works_word_for_word(project: Project) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "spangrad" in block]
    with serving(project, "--backend", "scripted", lines=2) as gateway:
        program(project, code, shell=gateway.said)

    (row,) = project.json("rollouts")["rollouts"]
    assert (row["rollout_id"].rpartition("-")[0], row["status"]) == ("sums-1", "succeeded")


def test_json_names_url_key_and_run_and_a_train_toml_gives_the_model(project: Project) -> None:
    with serving(project, "train.toml", "--key", "my-own-key", "--json", lines=5) as gateway:
        report = json.loads(gateway.said)
        shell = (
            f"export SPANGRAD_URL={report['url']} SPANGRAD_KEY=my-own-key\n"
            f"export OPENAI_BASE_URL={report['url']}/v1 OPENAI_API_KEY=none"
        )
        program(project, PROGRAM, shell=shell)

    assert (report["key"], report["run"]) == ("my-own-key", "runs/demo-gateway")
    assert len(project.json("rollouts", "--run", report["run"])["rollouts"]) == 1


def test_a_rollout_that_is_open_when_it_stops_is_lost(project: Project) -> None:
    with serving(project, "--backend", "scripted", lines=2) as gateway:
        rollout = program(project, LEAVING, shell=gateway.said)

    (row,) = project.json("rollouts")["rollouts"]
    assert (row["rollout_id"], row["status"]) == (rollout, "lost")
    assert "gateway was stopped" in row["error"]


def test_beyond_this_machine_every_call_needs_a_key(project: Project) -> None:
    address = socket.gethostname()
    with serving(project, "train.toml", "--host", address, "--json", lines=5) as gateway:
        report = json.loads(gateway.said)
        assert report["url"].startswith(f"http://{address}:")
        with pytest.raises(AuthenticationError, match="wants a key"):
            OpenAI(base_url=f"{report['url']}/v1", api_key="none").models.list()
        shell = (
            f"export SPANGRAD_URL={report['url']} SPANGRAD_KEY={report['key']} NO_PROXY={address}\n"
            f"export OPENAI_BASE_URL={report['url']}/v1 OPENAI_API_KEY=none"
        )
        program(project, PROGRAM, shell=shell)
    assert "every call needs the key" in gateway.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backend", "nosuch"), "Unknown backend 'nosuch'"),
        (("--backend", "scripted", "--endpoint", "nowhere"), "--endpoint: must be the URL of a server"),
        (("--backend", "scripted", "--endpoint-model", "x"), "--endpoint-model without --endpoint"),
        (("--backend", "scripted", "--set", "seed=1"), "--set overrides a train.toml"),
        (("--backend", "scripted", "--host", "::"), "no address that others can call"),
        (("--backend", "scripted", "--host", "192.0.2.77"), "Cannot listen on 192.0.2.77"),
        (("--backend", "scripted", "--key", "a key"), "--key must be"),
        (("train.toml", "--backend", "scripted"), "--backend cannot be given beside it"),
        (("train.toml", "--set", "policy.endpoint=x"), "--set policy.endpoint=x: policy.endpoint: must be the URL"),
        (
            ("train.toml", "--set", "algorithm.credit={name='discounted', gamma=7}"),
            "--set algorithm.credit={name='discounted', gamma=7}: algorithm.credit: gamma is 7",
        ),
        (("none.toml",), "There is no file none.toml"),
    ],
)
def test_what_cannot_be_served_is_said_and_leaves_no_run(
    project: Project, arguments: tuple[str, ...], said: str
) -> None:
    assert said in fail(project, *arguments)
    assert list((project.path / "runs").glob("*")) == []


def test_a_port_in_use_is_said_and_leaves_no_run(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert f"Port {port} on 127.0.0.1 is in use" in fail(project, "--backend", "scripted", "--port", port)
    assert list((project.path / "runs").glob("*")) == []
