"""Weights on their way to another process: a safetensors file in shared memory, which the other process maps and does not copy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spangrad.errors import BackendError

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


def weight_folder() -> Path:
    """A new folder for such files: in memory where the system has one for that, else among the temporary files."""
    in_memory = os.access(_MEMORY, os.W_OK | os.X_OK)
    return Path(tempfile.mkdtemp(prefix="spangrad-weights-", dir=_MEMORY if in_memory else None))


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Writes the trained weights: with adapters those alone, for nothing else has changed.

    Args:
        weights: by name.
        path: of the file, which is not there yet.

    Raises:
        BackendError: there is no room for it.
    """
    try:
        save_file({name: weight.detach().contiguous() for name, weight in weights.items()}, path)
    except (OSError, SafetensorError) as error:
        path.unlink(missing_ok=True)
        size = sum(weight.numel() * weight.element_size() for weight in weights.values())
        raise BackendError(
            f"The new weights cannot be handed to the sampler: {path.parent} takes no file of {size >> 20} MB ({error})",
            cure='Make room there, or use sampler = "shared" in [torch]',
        ) from error


@torch.no_grad()
def take_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Lets weights be those of a file. On a CPU they lie in the file's own memory from then on, which outlives its name.

    Args:
        path: what `write_weights` wrote.
        weights: by the same names.
    """
    found = load_file(path)
    for name, weight in weights.items():
        weight.data = found[name].to(weight.device)
