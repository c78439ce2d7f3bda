"""Runs all checks of a GPU, each in a process of its own with a time limit, and writes one JSON; run.sh makes the environment for it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import tiny_model
import torch
from measuring import machine, our_versions

HERE: Final = Path(__file__).parent
CHECKS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "precision": (("precision.py",), 50),
    "torch sampler": (("sampling.py",), 60),
    "tree": (("tree.py",), 80),
    "flex": (("tree.py", "--flex"), 120),
    "vllm sampler": (("sampling.py", "--sampler", "vllm"), 140),
    "maths example": (("example.py",), 140),
}
"""Each check's command, and the seconds it may take: 590 in all."""
SLOWER: Final = 2
"""On a CPU they may take so many times as long."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", nargs="?", type=Path, help="the JSON to write; left out, it is printed")
    parser.add_argument("--model", help="a Hugging Face folder; left out, smollm2-135m, and a tiny one with --small")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--vllm-python", help="Python of the environment that has vLLM")
    parser.add_argument("--only", action="append", choices=tuple(CHECKS), help="only this check; may be repeated")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            f"torch {torch.__version__} sees no GPU. Check the driver, or see that the checks work with DEVICE=cpu"
        )
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model or (str(tiny_model.write(Path(folder))) if chosen.small else "smollm2-135m")
        options = ["--model", model, "--device", chosen.device, *["--small"] * chosen.small]
        if chosen.vllm_python:
            options += ["--vllm-python", chosen.vllm_python]
        checks = {name: _check(name, options, chosen) for name in chosen.only or CHECKS}
    failed = [name for name, found in checks.items() if found.get("failures")]
    text = json.dumps(_around(chosen, model) | {"checks": checks, "failed": failed}, indent=1)
    print(text) if chosen.out is None else chosen.out.write_text(text + "\n", encoding="utf-8")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


def _check(name: str, options: list[str], chosen: argparse.Namespace) -> dict[str, Any]:
    """What one check found; what went wrong stands in its `failures`."""
    (script, *more), limit = CHECKS[name]
    if reason := _not_here(name, chosen):
        return {"skipped": reason}
    print(f"{name} ...", file=sys.stderr, flush=True)
    limit *= SLOWER if chosen.device == "cpu" else 1
    paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    begun = time.monotonic()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8") as wrong,
    ):
        command = [sys.executable, str(HERE / script), *more, *options]
        process = subprocess.Popen(  # noqa: S603 - our own scripts
            command, stdout=said, stderr=wrong, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True
        )
        try:
            status = str(process.wait(limit))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # what it has started too
            process.wait()
            status = f"none within {limit} s"
        said.seek(0)
        wrong.seek(0)
        lines, last = said.read().splitlines(), wrong.read()[-2000:]
    found: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        found = json.loads(lines[-1])
    if status != "0":
        found["failures"] = [*found.get("failures", ()), f"{script} ended with status {status}: {last.strip()}"]
    return found | {"seconds in all": round(time.monotonic() - begun, 1)}


def _not_here(name: str, chosen: argparse.Namespace) -> str | None:
    """Why a check cannot be made on this machine, where that is no failure."""
    if name == "flex" and chosen.device == "cpu":
        return "needs a GPU: torch has no backward of FlexAttention on a CPU"
    if name == "vllm sampler" and chosen.vllm_python is None and find_spec("vllm") is None:
        return "vLLM is not installed here; VLLM_PYTHON names the Python of an environment that has it"
    return None


def _around(chosen: argparse.Namespace, model: str) -> dict[str, Any]:
    """What it ran with and on."""
    gpu: dict[str, Any] = {}
    if chosen.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu = {"name": properties.name, "GB": round(properties.total_memory / 1e9, 1), "cuda": torch.version.cuda}
    return {
        "benchmark": "gpu",
        "device": chosen.device,
        "small": chosen.small,
        "model": model if chosen.model or not chosen.small else "two layers of random weights",
        "gpu": gpu,
        "versions": our_versions("torch", "transformers") | _versions("vllm", "triton", "autogen-agentchat"),
        "machine": machine(),
    }


def _versions(*names: str) -> dict[str, str | None]:
    """Of what may be missing."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


if __name__ == "__main__":
    main()
