"""The model that is measured, in our own backend: in fp32, and so that no answer ends before its time."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Final

import measuring
import torch

from spangrad_torch import LoadedModel, TorchBackend, TorchOptions, choose_compute, load_model

MODEL: Final = "smollm2-135m"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark with a model."""
    made = measuring.parser(doc)
    made.add_argument("--model", default=MODEL, help="a Hugging Face folder or a name, as in train.toml")
    made.add_argument("--threads", type=int, default=2, help="for arithmetic, of every side that is measured")
    return made


def load_unending(model: str) -> LoadedModel:
    """The model, for which no token ends an answer: each has as many as are asked for, as the peers' have."""
    return replace(load_model(model), end_ids=frozenset())


def backend_of(loaded: LoadedModel, threads: int) -> TorchBackend:
    """The model's backend, sampling and learning with so many threads."""
    torch.set_num_threads(threads)
    compute = choose_compute(loaded, precision="fp32", decode_threads=threads, train_threads=threads)
    settings = TorchOptions(model=str(loaded.folder), precision="fp32", decode_threads=threads, train_threads=threads)
    return TorchBackend(loaded, compute, settings, seed=1)


def cosine(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Of the angle between two gradients by weight, and how many times as long the first is as the second.

    Raises:
        ValueError: they are of different weights.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(f"The gradients are of different weights: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    dot = sum(float((ours[name].double() * theirs[name].double()).sum()) for name in ours)
    lengths = [sum(float(g.double().square().sum()) for g in grads.values()) ** 0.5 for grads in (ours, theirs)]
    return dot / (lengths[0] * lengths[1]), lengths[0] / lengths[1]
