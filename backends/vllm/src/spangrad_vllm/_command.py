"""The command line and environment of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
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
        "dtype": served_dtype(installation, options),
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
        flags["gpu-memory-utilization"] = gpu_share(options)
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


def served_dtype(installation: Installation, options: VllmOptions) -> str:
    """Of the weights."""
    if options.dtype != "auto":
        return options.dtype
    return "float32" if installation.on_cpu else "bfloat16"


def cpu_cache_gb(options: VllmOptions) -> int:
    """Gigabytes for keys and values of a server on the CPU."""
    return options.cpu_cache_gb or _CPU_CACHE_GB


def gpu_share(options: VllmOptions) -> float:
    """What a server takes of a GPU's memory."""
    return options.gpu_memory or _GPU_SHARE


def shown_gpus(options: VllmOptions, number: int) -> Sequence[str]:
    """The GPUs of the server of that number, as CUDA names them; without the setting `gpus`, the first of those that it would see."""
    size = options.gpus_per_server or 1
    if options.gpus:
        first = number * size % len(options.gpus)
        return [str(gpu) for gpu in options.gpus[first : first + size]]
    shown = (options.environment.get(_VISIBLE) or os.environ.get(_VISIBLE) or "").split(",")
    return [gpu.strip() for gpu in shown if gpu.strip()][:size] or [str(gpu) for gpu in range(size)]


def _environment(installation: Installation, options: VllmOptions, model: ServedModel, number: int) -> dict[str, str]:
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # without it there are no routes to change weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if model.adapter_rank is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if installation.on_cpu:
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_cache_gb(options))
        variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    if options.gpus:
        variables[_VISIBLE] = ",".join(shown_gpus(options, number))
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
