"""The command line and environment of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spangrad.backend import ServedModel
from spangrad.errors import BackendError
from spangrad_vllm._installation import Installation
from spangrad_vllm._options import Flag, VllmOptions

BASE: Final = "base"
"""What servers call the model without adapters."""
_MODULE: Final = "vllm.entrypoints.openai.api_server"
"""Not `vllm serve`: that fails where the distribution is not called vllm."""
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be started for."""
_GPU_SHARE: Final = 0.4
_CPU_CACHE_GB: Final = 1


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a server."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Further variables."""


def server_command(
    installation: Installation, options: VllmOptions, model: ServedModel, *, number: int, port: int, folder: Path
) -> Command:
    """How to start one server.

    Args:
        installation: the vLLM.
        options: the sampler's table.
        model: what to serve.
        number: of the server, from 0.
        port: of this machine that it listens on.
        folder: with the weights it begins with.
    """
    flags: dict[str, Flag] = {
        "host": "127.0.0.1",
        "port": port,
        "model": str(folder),
        "served-model-name": BASE,
        "dtype": options.dtype if options.dtype != "auto" else ("float32" if installation.on_cpu else "bfloat16"),
        "max-model-len": served_context(options, model),
        "seed": model.seed,
        # Of the distribution that ids are drawn from, as `SampleDelta.logprobs` wants it.
        "logprobs-mode": "processed_logprobs",
        # The model's own generation settings would change how answers are drawn where a request is silent.
        "generation-config": "vllm",
        "disable-uvicorn-access-log": True,
    }
    if installation.on_cpu:
        flags["enforce-eager"] = True  # compiling takes minutes and gains little here
    else:
        flags["gpu-memory-utilization"] = options.gpu_memory or _GPU_SHARE
        flags["tensor-parallel-size"] = options.gpus_per_server or 1
    if model.adapter_rank is not None:
        # Two of each policy: while one is exchanged both are there.
        slots = 2 * len(model.policies)
        flags |= {"enable-lora": True, "max-lora-rank": _lora_rank(model.adapter_rank), "max-loras": slots}
        flags["max-cpu-loras"] = slots
    words = [installation.python, "-m", _MODULE]
    for name, value in (flags | {_dashed(name): value for name, value in options.flags.items()}).items():
        words += _option(name, value)
    return Command(tuple(words), _environment(installation, options, model, number))


def served_context(options: VllmOptions, model: ServedModel) -> int:
    """Most tokens of a prompt and its answer.

    Raises:
        BackendError: more are asked for than the model has.
    """
    if options.context is not None and options.context > model.context_length:
        raise BackendError(
            f"context = {options.context}, but the model's context holds {model.context_length} tokens",
            cure="Lower it, or leave it out",
        )
    return options.context or model.context_length


def _environment(installation: Installation, options: VllmOptions, model: ServedModel, number: int) -> dict[str, str]:
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # without it there are no routes to change weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if model.adapter_rank is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if installation.on_cpu:
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(options.cpu_cache_gb or _CPU_CACHE_GB)
        variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    if options.gpus:
        size = options.gpus_per_server or 1
        first = number * size % len(options.gpus)
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, options.gpus[first : first + size]))
    return variables | options.environment


def _lora_rank(rank: int) -> int:
    """The smallest that vLLM can be started for and that holds the adapters.

    Raises:
        BackendError: there is none.
    """
    for most in _RANKS:
        if rank <= most:
            return most
    raise BackendError(
        f"vLLM serves adapters up to rank {_RANKS[-1]}, not {rank}", cure="Lower the rank, or train every weight"
    )


def _option(name: str, value: Flag) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _dashed(name: str) -> str:
    return name.lstrip("-").replace("_", "-")
