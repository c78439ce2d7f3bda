"""What every check has: the same options, a backend on the device that is checked, and a way to say what failed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from measuring import significant

from spangrad.backend import Backend
from spangrad.plugins import load_plugins

SERVERS: Final = {"flags": {"enforce-eager": True}}
"""Of vLLM's settings: without it the start takes minutes, for it compiles. It draws more slowly so."""

Precision = Literal["fp32", "bf16"]
PASS_TOKENS: Final = 8192
"""Token positions of a forward and backward pass."""


def options(doc: str | None, **choices: bool | tuple[str, ...]) -> argparse.Namespace:
    """Of the command line; a check's own are switches, or have values to choose from, the first if left out."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--model", required=True, help="a Hugging Face folder or a name, as in train.toml")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--small", action="store_true", help="tiny sizes, to see that it works")
    made.add_argument("--vllm-python", help="Python of the environment that has vLLM")
    for name, values in choices.items():
        if isinstance(values, bool):
            made.add_argument(f"--{name}", action="store_true")
        else:
            made.add_argument(f"--{name}", choices=values, default=values[0])
    return made.parse_args()


def backend(chosen: argparse.Namespace, precision: Precision, **more: Any) -> Backend:
    """The model as `backend = "torch"` loads it with these settings."""
    factory = load_plugins().backends.get("torch")
    table = {
        "model": chosen.model,
        "device": chosen.device,
        "precision": precision,
        "max_tokens_per_pass": PASS_TOKENS,
        **({"decode_threads": 1} if more.get("sampler", "shared") == "shared" else {}),
        "train_threads": 1,
        **more,
    }
    return factory.create(factory.check(table), seed=1)


def seconds(work: Callable[[], object]) -> float:
    """How long the work takes, the device's part included."""
    _finish()
    begun = time.perf_counter()
    work()
    _finish()
    return time.perf_counter() - begun


def memory() -> dict[str, float]:
    """GB of the GPU that torch has had at most; nothing on a CPU."""
    if not torch.cuda.is_available():
        return {}
    return {"GB at most": significant(torch.cuda.max_memory_allocated() / 1e9)}


def report(figures: Mapping[str, Any], failures: list[str]) -> None:
    """Prints the check's object; ends the process with 1 where something failed."""
    print(json.dumps({**figures, "failures": failures}))
    if failures:
        raise SystemExit(1)


def _finish() -> None:
    """Waits for what the GPU has been given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
