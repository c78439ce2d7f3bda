"""Whether the servers fit into memory, before any is started. What is refused here could not start; what is not may still fail."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from math import prod
from pathlib import Path
from typing import Final

from spangrad.errors import BackendError
from spangrad_vllm._command import cpu_cache_gb, gpu_share, served_dtype, shown_gpus
from spangrad_vllm._installation import Installation
from spangrad_vllm._options import VllmOptions
from spangrad_vllm._safetensors import tensors

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_GB: Final = 1 << 30
_MEMINFO: Final = Path("/proc/meminfo")
_SECONDS: Final = 60.0


def require_memory(installation: Installation, options: VllmOptions, folder: Path, *, servers: int) -> None:
    """Makes sure that weights and caches of all servers fit.

    Args:
        installation: the vLLM.
        options: the sampler's table.
        folder: of the model.
        servers: how many are to be started in all.

    Raises:
        BackendError: they do not.
    """
    weights = sum(prod(told["shape"]) for _, _, told in tensors(folder)) * _BYTES[served_dtype(installation, options)]
    if installation.on_cpu:
        _require_ram(weights, options, servers)
    else:
        _require_gpu_memory(weights, options, servers)


def _require_ram(weights: int, options: VllmOptions, servers: int) -> None:
    free = _available_ram()
    cache = cpu_cache_gb(options) * _GB
    needed = servers * (weights + cache)
    if free is not None and needed > free:
        raise BackendError(
            f"{servers} vLLM server(s) need at least {needed / _GB:.1f} GB ({weights / _GB:.1f} GB of weights and {cache / _GB:.1f} GB "
            f"of cache each), and {free / _GB:.1f} GB of memory are available",
            cure="Lower servers or cpu_cache_gb, take a smaller model, or end what else takes memory",
        )


def _require_gpu_memory(weights: int, options: VllmOptions, servers: int) -> None:
    share, size = gpu_share(options), options.gpus_per_server or 1
    on_each = Counter(gpu for number in range(servers) for gpu in shown_gpus(options, number))
    for gpu, count in on_each.items():
        if (found := _gpu_memory(gpu)) is None:
            continue
        total, free = found
        if count * share * total > free:
            raise BackendError(
                f"{count} vLLM server(s) with gpu_memory = {share:g} take {count * share * total / _GB:.1f} GB of GPU {gpu}, of which "
                f"{free / _GB:.1f} of {total / _GB:.1f} GB are free",
                cure="Lower gpu_memory or servers, name other gpus, or end what else computes there",
            )
        if weights / size > share * total:
            raise BackendError(
                f"The model's weights take {weights / size / _GB:.1f} GB of a GPU, and gpu_memory = {share:g} leaves a server "
                f"{share * total / _GB:.1f} GB of GPU {gpu}",
                cure="Raise gpu_memory or gpus_per_server, or take a smaller model",
            )


def _available_ram() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _gpu_memory(gpu: str) -> tuple[int, int] | None:
    """All and free bytes of a GPU, as NVIDIA's tool says; None where that is not there or does not know it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    words = [tool, f"--id={gpu}", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_SECONDS)  # noqa: S603 - the driver's own
        total, free = (int(part) << 20 for part in done.stdout.split(","))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return total, free
