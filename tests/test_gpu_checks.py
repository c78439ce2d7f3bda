"""The checks of a GPU, on a CPU: the script with a model of two layers, and what it says of checks that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu"
CHECKS = ["precision", "torch sampler", "tree", "flex", "vllm sampler", "maths example"]


def written(out: Path, *command: str, status: int = 0, **environment: str) -> Any:
    """The JSON of a run that ends with that status."""
    ran = subprocess.run(
        [*command, str(out)],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent), **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    return json.loads(out.read_text())


def driver(*options: str) -> tuple[str, ...]:
    """What run.sh starts once it has an environment."""
    return (sys.executable, str(FOLDER / "run.py"), "--device", "cpu", "--small", *options)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_that_a_cpu_can_check_is_checked(tmp_path: Path) -> None:
    script = str(FOLDER / "run.sh")
    found = written(tmp_path / "gpu.json", script, READY="1", DEVICE="cpu", PYTHON=sys.executable, OMP_NUM_THREADS="1")

    assert list(found["checks"]) == CHECKS
    assert found["failed"] == []
    assert "needs a GPU" in found["checks"]["flex"]["skipped"]
    tree = found["checks"]["tree"]
    assert all(case["cosine to flat fp32"] == pytest.approx(1, abs=1e-5) for case in tree["fp32"].values())
    worst = min(case["cosine to flat fp32"] for case in tree["bf16"].values())
    assert 0.99 < worst < 1 - 1e-7  # it is another precision
    drawn = found["checks"]["torch sampler"]
    assert (drawn["answers"], drawn["drawn tokens"]) == (4, 4 * 4)
    assert found["checks"]["maths example"]["summary"]["counts"]["rollouts"] == 4


def test_bf16_is_compared_with_fp32_and_the_machine_is_named(tmp_path: Path) -> None:
    found = written(tmp_path / "gpu.json", *driver("--only", "precision"))

    assert found["checks"]["precision"]["tokens"] == 2 * 4 * 3  # rollouts, calls, tokens of an answer
    assert 0 < found["checks"]["precision"]["mean |difference|"] < 0.1
    assert found["machine"]["cores"] > 0
    assert found["versions"]["torch"]


def test_a_check_that_fails_fails_the_script_and_says_why(tmp_path: Path) -> None:
    found = written(tmp_path / "gpu.json", *driver("--only", "precision", "--model", "/nowhere"), status=1)

    assert found["failed"] == ["precision"]
    assert "There is no model '/nowhere'" in found["checks"]["precision"]["failures"][0]
