"""What a child process finds in its environment, and what Python makes of it before the program runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spangrad.capture import RolloutScope, child_environment, scope_from_environment
from spangrad.capture._child import INTEGRATIONS_VARIABLE, STARTUP_FOLDER

SCOPE = RolloutScope("r", 2, "t", "http://127.0.0.1:1/rollouts/r/attempts/2/v1", "key", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in list(os.environ):
        if name.startswith("SPANGRAD_"):
            monkeypatch.delenv(name)


def run(
    program: str, *options: str, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **child_environment(SCOPE), **variables}
    command = [python, *options, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def printed(program: str, *options: str, **variables: str) -> str:
    done = run(program, *options, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, STARTUP_FOLDER),
        ({"PYTHONPATH": ""}, STARTUP_FOLDER),
        ({"PYTHONPATH": "a:b"}, f"{STARTUP_FOLDER}:a:b"),
        ({"PYTHONPATH": f"{STARTUP_FOLDER}:a"}, f"{STARTUP_FOLDER}:a"),
        ({"PYTHONPATH": "a::b"}, f"{STARTUP_FOLDER}:a::b"),  # the empty entry is the current folder
    ],
)
def test_the_environment_has_the_identity_and_our_folder_before_the_programs(
    before: dict[str, str], after: str
) -> None:
    variables = child_environment(SCOPE, before)
    assert scope_from_environment(variables) == SCOPE
    assert variables["PYTHONPATH"] == after


def test_the_environment_names_the_frameworks_and_the_python_environment_they_are_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPANGRAD_PLUGINS", "")
    assert child_environment(SCOPE)[INTEGRATIONS_VARIABLE] == f"@{sys.prefix}"
    monkeypatch.setenv("SPANGRAD_PLUGINS", "no-such-plugin")
    assert child_environment(SCOPE)[INTEGRATIONS_VARIABLE] == ""


def test_the_programs_module_path_is_as_it_would_have_been() -> None:
    program = "import sys; print(sys.path)"
    without = {name: value for name, value in os.environ.items() if not name.startswith("SPANGRAD_")}
    plain = subprocess.run(
        [sys.executable, "-c", program], env=without, capture_output=True, text=True, check=True, timeout=60
    )
    assert printed(program) == plain.stdout.strip()


def test_until_something_that_matters_is_imported_spangrad_is_not() -> None:
    program = "import json, sys; print(sorted(m for m in sys.modules if m.split('.')[0] in {'spangrad', 'opentelemetry', 'numpy'}))"
    assert printed(program) in {"[]", "['spangrad']"}  # finding it may import the package, which is empty


def test_the_users_own_sitecustomize_runs_first(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = [p for p in sys.path if '_startup' in p]\n")
    program = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)"
    environment = child_environment(SCOPE, {"PYTHONPATH": str(tmp_path)})
    assert printed(program, **environment) == f"[] {tmp_path / 'sitecustomize.py'}"


def test_a_users_own_sitecustomize_that_raises_is_reported_by_python_and_does_not_keep_us_out(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise KeyError('theirs')\n")
    environment = child_environment(SCOPE, {"PYTHONPATH": str(tmp_path)})
    done = run("import spangrad; print(spangrad.current_scope().rollout_id)", **environment)
    assert (done.returncode, done.stdout) == (0, "r\n")
    assert "KeyError: 'theirs'" in done.stderr


def test_a_programs_sitecustomize_that_lacks_a_module_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    done = run("print('ran')", **child_environment(SCOPE, {"PYTHONPATH": str(tmp_path)}))
    assert done.stdout == "ran\n"
    assert "no_such_module" in done.stderr


def test_importing_spangrad_joins_the_rollout_in_all_threads() -> None:
    program = """
import threading, spangrad
seen = [spangrad.current_scope()]
thread = threading.Thread(target=lambda: seen.append(spangrad.current_scope()))
thread.start()
thread.join()
print([(scope.rollout_id, scope.attempt) for scope in seen])
"""
    assert printed(program) == "[('r', 2), ('r', 2)]"


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_skips_it_runs_as_ever(option: str) -> None:
    assert printed("print('ran')", option) == "ran"


def test_a_python_environment_without_spangrad_is_left_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True, timeout=60)
    python = str(tmp_path / "other/bin/python")
    done = run(
        "import sys, json, logging; print(sorted(m for m in sys.modules if m.startswith('spangrad')))", python=python
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_another_environment_with_spangrad_asks_its_own_plugins() -> None:
    environment = {INTEGRATIONS_VARIABLE: "nothing=nothing@/another/prefix", "SPANGRAD_PLUGINS": ""}
    assert printed("import sys; print('spangrad.capture._process' in sys.modules)", **environment) == "True"


def test_a_process_that_cannot_attach_says_so_in_one_line_and_the_program_runs_on() -> None:
    wrong = {INTEGRATIONS_VARIABLE: "", "SPANGRAD_PLUGINS": "no-such-plugin"}
    done = run("print('ran'); raise SystemExit(7)", **wrong)
    assert (done.returncode, done.stdout) == (7, "ran\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("spangrad: this process is not attached: SPANGRAD_PLUGINS names 'no-such-plugin'")


def test_under_strict_a_process_that_cannot_attach_ends_before_the_program_runs() -> None:
    wrong = {INTEGRATIONS_VARIABLE: "", "SPANGRAD_PLUGINS": "no-such-plugin", "SPANGRAD_STRICT": "1"}
    done = run("print('ran')", **wrong)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-plugin" in done.stderr


def test_under_strict_it_comes_out_of_the_import_that_led_to_attaching() -> None:
    wrong = {INTEGRATIONS_VARIABLE: f"no-such-plugin=json.tool@{sys.prefix}", "SPANGRAD_STRICT": "1"}
    done = run("print('ran')\nimport json.tool\nprint('imported')", **wrong)
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert "PluginError: SPANGRAD_PLUGINS names 'no-such-plugin'" in done.stderr

    done = run("import json.tool\nprint('imported')", **{**wrong, "SPANGRAD_STRICT": ""})
    assert (done.returncode, done.stdout) == (0, "imported\n")
    assert len(done.stderr.splitlines()) == 1


def test_the_folder_holds_nothing_that_could_hide_a_programs_own_module() -> None:
    names = {path.name for path in Path(STARTUP_FOLDER).iterdir()} - {"__pycache__"}
    assert names == {"__init__.py", "sitecustomize.py"}
