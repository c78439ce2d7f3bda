"""The maths example for a few steps: examples/math_autogen/train.gpu.toml with this model and tasks of the example's own making."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import on_device

FILE: Final = Path(__file__).parents[2] / "examples" / "math_autogen" / "train.gpu.toml"
CONTEXT: Final = 2048


def main() -> None:
    """The command."""
    chosen = on_device.options(__doc__)
    sampler = "vllm" if chosen.vllm_python or find_spec("vllm") else "shared"
    steps = 1 if chosen.small else 4
    settings: dict[str, Any] = {
        "agent.run": "agent:solve",
        "policy.model": chosen.model,
        "tasks.train": "tasks:train",
        "tasks.heldout": {},
        "evaluation": {},
        "warm_start": _warm_start(small=chosen.small),
        "torch": _torch(chosen.device, sampler, chosen.vllm_python),
        "sampling.max_tokens": 8 if chosen.small else 128,
        "training.steps": steps,
        "training.learning_rate": 2e-5,
        "training.tasks_per_step": 2 if chosen.small else 16,
        "training.rollouts_per_task": 2 if chosen.small else 8,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spangrad", "train", str(FILE), "--json", "--runs", folder]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={_toml(value)}")]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own command
        if ran.returncode:
            on_device.report({"sampler": sampler}, [f"spangrad train ended with {ran.returncode}"])
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    figures = {"sampler": sampler, "summary": json.loads(ran.stdout), "metrics": rows}
    done = sum(row["kind"] == "step" for row in rows)
    failures = [] if done == steps else [f"{done} of {steps} steps are in metrics.jsonl"]
    if not chosen.small and not figures["summary"]["counts"]["updates"]:  # random weights never find an answer
        failures.append("no step had anything to learn from")
    on_device.report(figures, failures)


def _warm_start(*, small: bool) -> dict[str, Any]:
    """That of the settings for a CPU, whose model and tasks these are: without it no answer is right."""
    table = tomllib.loads(FILE.with_name("train.toml").read_text(encoding="utf-8"))["warm_start"]
    return dict(table) | ({"steps": 1, "batch": 2, "ramp_steps": 1} if small else {})


def _torch(device: str, sampler: str, python: str | None) -> dict[str, Any]:
    """The file's table [torch] for this device; without vLLM the torch backend draws itself."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))["torch"]
    table |= {"device": device, "sampler": sampler, "max_sequence": CONTEXT}
    if sampler == "vllm":
        table["vllm"] |= on_device.SERVERS | {"context": CONTEXT} | ({"python": python} if python else {})
    else:
        del table["vllm"]
    return dict(table)


def _toml(value: Any) -> str:
    """A value as it stands in TOML; text, numbers and truth are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()
