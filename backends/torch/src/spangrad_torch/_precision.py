"""Which precision, kernel and number of threads are fastest on this machine, found by trying.

No rule of thumb holds: bf16 is several times slower than fp32 on a CPU without its instructions and faster on one with them, a
second thread can make decoding slower beside other load, and which matrix library wins depends on the maker of the processor.
What is timed is one decoder layer's own matrices, which is where a model spends its time.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import Tensor, nn

from spangrad_torch._linear import OneDnnLinear, has_onednn, use_onednn
from spangrad_torch._model import LoadedModel

_DECODE_ROWS: Final = 32
_TRAIN_ROWS: Final = 128
_THREADS_MUST_GAIN: Final = 1.1
"""A higher number of threads has to be faster by this factor: it takes a core from the agents."""
_BF16_MUST_GAIN: Final = 3.0
"""bf16 has to be faster than fp32 by this factor: it makes sampler and learner disagree a little."""
_REPEATS: Final = 5
_HOPELESS: Final = 4.0
"""A trial this many times slower than the best of its kind is not repeated."""


@dataclass(frozen=True, slots=True)
class Compute:
    """How to compute on this machine."""

    autocast: torch.dtype | None
    """bfloat16, or None to compute in the weights' own precision; the same for sampling and training."""
    onednn: bool
    """Whether linear layers go through oneDNN; see `_linear`."""
    decode_threads: int
    train_threads: int
    measured: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of a layer's matrices in each trial, by name; empty when nothing had to be measured."""

    def apply(self, model: nn.Module) -> None:
        """Lets the model compute this way; threads and autocast are for whoever runs it."""
        if self.onednn:
            use_onednn(model)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One way to compute."""

    train: bool
    bf16: bool
    onednn: bool
    threads: int

    @property
    def name(self) -> str:
        """For the record of a run."""
        parts = (
            "train" if self.train else "decode",
            "bf16" if self.bf16 else "fp32",
            "onednn" if self.onednn else "mkl",
        )
        return f"{'_'.join(parts)}_{self.threads}t"


def choose_compute(
    loaded: LoadedModel,
    *,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    decode_threads: int | Literal["auto"] = "auto",
    train_threads: int | Literal["auto"] = "auto",
) -> Compute:
    """Chooses how to compute, measuring what is left on auto: takes about a second on a CPU.

    On a GPU nothing is measured: precision auto is bf16 if the GPU has it, and there are no threads to choose.

    Args:
        loaded: the model.
        precision: auto keeps fp32 unless bf16 is at least three times as fast.
        decode_threads: of the sampler.
        train_threads: of the learner.
    """
    if loaded.model.device.type != "cpu":
        wants_bf16 = precision == "bf16" or (precision == "auto" and torch.cuda.is_bf16_supported())
        return Compute(torch.bfloat16 if wants_bf16 else None, onednn=False, decode_threads=1, train_threads=1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    counts = sorted({1, cores})
    precisions = {"auto": (False, True), "fp32": (False,), "bf16": (True,)}[precision]
    kernels = (False, True) if has_onednn() else (False,)
    decode = counts if decode_threads == "auto" else [decode_threads]
    train = counts if train_threads == "auto" else [train_threads]
    # bf16 without oneDNN's layout is the slower of the two wherever there is oneDNN, so only one of them is tried.
    ways = [
        (bf16, onednn) for bf16, onednn in itertools.product(precisions, kernels) if not bf16 or onednn == kernels[-1]
    ]
    trials = [
        _Trial(is_training, bf16, onednn, threads)
        for is_training, options in ((False, decode), (True, train))
        for threads, (bf16, onednn) in itertools.product(options, ways)
    ]
    times = _measure(loaded.model, trials)
    return _choose(times)


def _choose(times: Mapping[_Trial, float]) -> Compute:
    """The fastest combination, with the handicaps above."""

    def best(*, train: bool, bf16: bool, onednn: bool) -> tuple[float, int]:
        found = {t.threads: ms for t, ms in times.items() if (t.train, t.bf16, t.onednn) == (train, bf16, onednn)}
        chosen = min(found)
        for threads in sorted(found):
            if found[threads] * _THREADS_MUST_GAIN < found[chosen]:
                chosen = threads
        return found[chosen], chosen

    def cost(way: tuple[bool, bool]) -> float:
        decode = best(train=False, bf16=way[0], onednn=way[1])[0] / _DECODE_ROWS
        train = best(train=True, bf16=way[0], onednn=way[1])[0] / _TRAIN_ROWS
        # A token is drawn once and trained on once; in bf16 both have to pay for the loss of precision.
        return (decode + train) * (_BF16_MUST_GAIN if way[0] else 1.0)

    bf16, onednn = min(sorted({(t.bf16, t.onednn) for t in times}), key=cost)
    return Compute(
        autocast=torch.bfloat16 if bf16 else None,
        onednn=onednn,
        decode_threads=best(train=False, bf16=bf16, onednn=onednn)[1],
        train_threads=best(train=True, bf16=bf16, onednn=onednn)[1],
        measured={trial.name: round(ms, 3) for trial, ms in times.items()},
    )


def _measure(model: nn.Module, trials: Sequence[_Trial]) -> dict[_Trial, float]:
    """Milliseconds of each trial: the median of some runs, for what counts is how it goes beside the present load.

    It runs in a thread of its own, for the number of threads is one of the calling thread's settings.
    """
    weights = _layer_weights(model)
    times: dict[_Trial, float] = {}

    def run() -> None:
        for trial in trials:
            rivals = [ms for other, ms in times.items() if other.train == trial.train]
            times[trial] = _time(
                _work(weights, trial), trial.threads, hopeless=_HOPELESS * min(rivals, default=math.inf)
            )

    thread = threading.Thread(target=run, name="spangrad-measure")
    thread.start()
    thread.join()
    return times


def _layer_weights(model: nn.Module) -> list[Tensor]:
    """Copies of the matrices of the model's first decoder layer: those of the first module list."""
    layers = next((m for m in model.modules() if isinstance(m, nn.ModuleList)), model)
    first = layers[0] if isinstance(layers, nn.ModuleList) else layers
    return [m.weight.detach().clone().float() for m in first.modules() if isinstance(m, nn.Linear)]


def _work(weights: Sequence[Tensor], trial: _Trial) -> Callable[[], None]:
    """The products of a trial: forward, and backward when training."""
    layers = []
    for weight in weights:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight, requires_grad=trial.train)
        if trial.onednn:
            layer.__class__ = OneDnnLinear
        layers.append(layer)
    rows = _TRAIN_ROWS if trial.train else _DECODE_ROWS
    inputs = [torch.ones(rows, weight.shape[1], requires_grad=trial.train) for weight in weights]

    def once() -> None:
        with (
            torch.set_grad_enabled(trial.train),
            torch.autocast("cpu", torch.bfloat16) if trial.bf16 else nullcontext(),
        ):
            outputs = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
        if trial.train:
            torch.autograd.backward([output.float().sum() for output in outputs])

    return once


def _time(once: Callable[[], None], threads: int, *, hopeless: float) -> float:
    """Median milliseconds of some runs after one to warm up; fewer runs once one is slower than `hopeless`."""
    torch.set_num_threads(threads)
    once()
    times: list[float] = []
    while len(times) < _REPEATS and (not times or times[-1] < hopeless):
        start = time.perf_counter()
        once()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
