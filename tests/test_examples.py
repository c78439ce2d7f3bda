"""Every example can be started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*/train.toml")), ids=lambda path: path.parent.name)
def test_an_examples_settings_are_valid(config: Path) -> None:
    command = [sys.executable, "-m", "spangrad", "train", str(config), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
