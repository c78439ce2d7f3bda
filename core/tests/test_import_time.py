"""Importing spangrad costs an agent next to nothing, because nothing heavy is imported along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "anyio",
    "httpx",
    "matplotlib",
    "numpy",
    "openai",
    "pluggy",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "torch",
    "transformers",
    "typer",
    "uvicorn",
}


def imported_by(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(ran.stdout)}


@pytest.mark.parametrize(
    "statement",
    [
        "import spangrad",
        "import spangrad; spangrad.rollout; spangrad.current_scope; spangrad.RolloutScope; spangrad.Rollout",
        "import spangrad.capture",
        "import spangrad.errors, spangrad.semconv",
    ],
)
def test_capture_imports_nothing_heavy(statement: str) -> None:
    assert imported_by(statement) & HEAVY == set()


def test_importing_spangrad_alone_does_not_even_import_opentelemetry() -> None:
    assert "opentelemetry" not in imported_by("import spangrad")
