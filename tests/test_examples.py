"""Every example can be started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
GPU_SETTINGS = sorted(EXAMPLES.glob("*/train.gpu.toml"))
GENERATED = ("agent.run=agent:solve", "tasks.train=tasks:train", 'tasks.heldout={made = "tasks:heldout"}')
"""The examples' own tasks, where the settings name a data set that has to be fetched."""


def dry_run(config: Path, *settings: str) -> Any:
    """What `--dry-run --json` says on a machine without a GPU."""
    command = [sys.executable, "-m", "spangrad", "train", str(config), "--dry-run", "--json"]
    command += [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*/train.toml")), ids=lambda path: path.parent.name)
def test_an_examples_settings_are_valid(config: Path) -> None:
    assert dry_run(config)["missing"] is None


def test_every_example_has_settings_for_a_gpu() -> None:
    assert [path.parent for path in GPU_SETTINGS] == sorted(path.parent for path in EXAMPLES.glob("*/train.toml"))


@pytest.mark.parametrize("config", GPU_SETTINGS, ids=lambda path: path.parent.name)
def test_settings_for_a_gpu_are_valid_and_what_is_missing_is_said(config: Path) -> None:
    found = dry_run(config, *GENERATED)

    assert found["tasks"] > 0
    assert found["missing"] == 'device = "cuda", but torch sees no GPU. Use device = "auto" or "cpu"'


@pytest.mark.parametrize("config", GPU_SETTINGS, ids=lambda path: path.parent.name)
def test_where_vllm_is_missing_that_is_said(config: Path) -> None:
    found = dry_run(config, *GENERATED, "torch.device=cpu", "torch.vllm.python=/nowhere/python")

    assert "/nowhere/python" in found["missing"]
