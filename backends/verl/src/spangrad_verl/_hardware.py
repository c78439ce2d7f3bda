"""What the learner needs of the machine, looked at before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from spangrad.errors import BackendError
from spangrad_verl._model_folder import ModelFolder

_BYTES_PER_TRAINED: Final = 16
"""Weight, gradient and AdamW's two moments, each in fp32, of a trained number; activations come on top."""
_BYTES_PER_FROZEN: Final = 4
_SECONDS: Final = 120.0
_SCRIPT: Final = (
    "import torch as t; print(*(t.cuda.get_device_properties(i).total_memory for i in range(t.cuda.device_count())))"
)


def require_hardware(verl: Any, model: ModelFolder) -> None:
    """Makes sure of the GPUs, their memory and the attention kernels.

    Where RAY_ADDRESS names a cluster its machines are not looked at: Ray places the workers there, or says that it cannot.

    Args:
        verl: verl's whole configuration, composed.
        model: to be trained.

    Raises:
        BackendError: something is missing; with the cure.
    """
    if verl.trainer.device == "cpu":
        if os.environ.get("VERL_PLATFORM") != "cpu":
            raise BackendError(
                'trainer.device = "cpu", but verl computes on GPUs only',
                cure='Use backend = "torch", which trains on a CPU too',
            )
        return
    _require_kernels(verl)
    if os.environ.get("RAY_ADDRESS"):
        return
    memory, wanted = gpu_memory(), int(verl.trainer.n_gpus_per_node)
    if len(memory) < wanted:
        raise BackendError(
            f"The verl backend is to use {wanted} GPU{'s' if wanted > 1 else ''} of this machine, and it shows {len(memory) or 'none'}",
            cure='Set n_gpus_per_node in [verl.trainer], run on a machine with GPUs, or use backend = "torch"',
        )
    needed = needed_bytes(verl, model) // (wanted * int(verl.trainer.nnodes))
    smallest = min(memory[:wanted])
    if needed > smallest:
        raise BackendError(
            f"Weights, gradients and optimiser take {needed / 2**30:.1f} GiB of each GPU, which has {smallest / 2**30:.1f} GiB",
            cure="Use more GPUs (trainer.n_gpus_per_node), train adapters (actor_rollout_ref.model.lora_rank), or keep weights and "
            "optimiser in main memory (actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload) in [verl]",
        )


def gpu_memory() -> list[int]:
    """Bytes of each GPU that torch sees, in their order; in a process of its own, since asking takes a part of their memory.

    Raises:
        BackendError: torch cannot say.
    """
    command = [sys.executable, "-c", _SCRIPT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)  # noqa: S603 - ours
    except (OSError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise BackendError(
            f"torch does not say which GPUs there are: {told}",
            cure="See whether `nvidia-smi` and `import torch` work here",
        ) from error
    return [int(word) for word in done.stdout.split()]


def needed_bytes(verl: Any, model: ModelFolder) -> int:
    """What the learner keeps on all its GPUs together, activations left out.

    Args:
        verl: verl's whole configuration, composed.
        model: to be trained.
    """
    engine = verl.actor_rollout_ref.actor.fsdp_config
    count = _numbers(model.folder)
    if engine.param_offload or engine.offload_policy or verl.actor_rollout_ref.model.lora_rank:
        return count * _BYTES_PER_FROZEN
    return count * (_BYTES_PER_TRAINED // 2 if engine.optimizer_offload else _BYTES_PER_TRAINED)


def _numbers(folder: Path) -> int:
    """How many numbers a model has, by its files' headers."""
    from safetensors import safe_open  # noqa: PLC0415 - only here

    count = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                size = 1
                for length in tensors.get_slice(name).get_shape():
                    size *= length
                count += size
    return count


def _require_kernels(verl: Any) -> None:
    """verl's defaults want FlashAttention, which is no requirement of verl's."""
    model = verl.actor_rollout_ref.model
    attention = model.override_config.get("attn_implementation", "flash_attention_2")
    if (attention == "flash_attention_2" or model.use_remove_padding) and find_spec("flash_attn") is None:
        raise BackendError(
            "verl attends with FlashAttention unless told otherwise, and flash-attn is not installed",
            cure='Install it, or set override_config.attn_implementation = "sdpa" and use_remove_padding = false in '
            "[verl.actor_rollout_ref.model]",
        )
