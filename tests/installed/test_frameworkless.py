"""Integrations whose frameworks are not installed: one clear row each, and an error with the pip line when asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.installed

NAMES = [name for name in os.environ.get("INTEGRATIONS", "").split(",") if name]


def spangrad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spangrad", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_integrations_to_look_at() -> None:
    assert len(NAMES) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_it_is_reported_as_not_installed_with_the_cure_and_the_program_runs_on(name: str) -> None:
    done = spangrad("plugins", "--json")

    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads(done.stdout)["plugins"] if row["name"] == name]
    assert row["state"] == "not installed"
    assert "which is not installed" in row["reason"]
    assert row["cure"] == f'pip install "spangrad[{name}]"'


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["SPANGRAD_PLUGINS", "SPANGRAD_STRICT"])
def test_asked_for_or_strict_it_is_an_error(name: str, how: str) -> None:
    done = spangrad("plugins", **{how: name if how == "SPANGRAD_PLUGINS" else "1"})

    assert done.returncode != 0
    assert f'pip install "spangrad[{name}]"' in done.stderr
    assert "Traceback" not in done.stderr
