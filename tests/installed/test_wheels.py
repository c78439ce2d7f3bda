"""Run inside an environment that holds only built wheels: everything loads through its entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.installed

ROOT = Path(__file__).parent.parent.parent
EXPECTED = [name for name in os.environ.get("SPANGRAD_EXPECTED_PLUGINS", "").split(",") if name]


def spangrad(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("spangrad")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd="/").stdout


def test_the_code_under_test_is_the_installed_one() -> None:
    assert EXPECTED
    for name in ("spangrad", *EXPECTED):
        located = metadata.distribution(name).locate_file("")
        assert ROOT not in Path(str(located)).resolve().parents or ".nox" in str(located)


def test_every_plugin_of_the_repository_loads_by_its_entry_point() -> None:
    rows = json.loads(spangrad("plugins", "--json"))["plugins"]

    assert {row["distribution"] for row in rows if row["state"] == "loaded"} >= set(EXPECTED)


def test_a_wheel_carries_its_type_marker_and_license_name() -> None:
    for name in ("spangrad", *EXPECTED):
        distribution = metadata.distribution(name)
        files = [str(file) for file in distribution.files or ()]

        assert any(file.endswith("/py.typed") for file in files), name
        assert distribution.metadata["License-Expression"] == "Apache-2.0"
