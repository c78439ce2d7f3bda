"""Which precision and how many threads are fastest on this machine. (Signatures first; the body is being written.)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from spangrad_torch._model import LoadedModel


@dataclass(frozen=True, slots=True)
class Compute:
    """How to compute on this machine."""

    autocast: torch.dtype | None
    """bfloat16, or None to compute in the weights' own precision; the same for sampling and training."""
    decode_threads: int
    train_threads: int
    measured: Mapping[str, float]
    """Seconds of each trial, by name; empty when nothing had to be measured."""


def choose_compute(
    loaded: LoadedModel,
    *,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    decode_threads: int | Literal["auto"] = "auto",
    train_threads: int | Literal["auto"] = "auto",
) -> Compute:
    """Measures what is left on auto: a fraction of a second."""
    raise NotImplementedError
