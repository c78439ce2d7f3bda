"""Choosing how to compute: the rule on given times, and that measuring works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spangrad_torch._linear import OneDnnLinear
from spangrad_torch._model import load_model
from spangrad_torch._precision import Compute, _choose, _Trial, choose_compute


def times(**given: float) -> dict[_Trial, float]:
    """Milliseconds by trial name; `decode_` times apply to training too unless `train_` ones are given."""
    found = {}
    for train in (False, True):
        for bf16 in (False, True):
            for onednn in (False, True):
                for threads in (1, 2):
                    trial = _Trial(train, bf16, onednn, threads)
                    default = given.get(trial.name.replace("train", "decode"))
                    ms = given.get(trial.name, default)
                    if ms is not None:
                        found[trial] = ms
    return found


def choice(compute: Compute) -> tuple[bool, bool, int, int]:
    return compute.autocast is not None, compute.onednn, compute.decode_threads, compute.train_threads


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"decode_fp32_mkl_1t": 2.0, "decode_fp32_onednn_1t": 1.0}, (False, True, 1, 1)),
        ({"decode_fp32_mkl_1t": 1.0, "decode_fp32_onednn_1t": 2.0}, (False, False, 1, 1)),
        ({"decode_fp32_mkl_1t": 2.0, "decode_bf16_mkl_1t": 1.0}, (False, False, 1, 1)),
        ({"decode_fp32_mkl_1t": 4.0, "decode_bf16_mkl_1t": 1.0}, (True, False, 1, 1)),
        ({"decode_fp32_mkl_1t": 2.0, "decode_fp32_mkl_2t": 1.9}, (False, False, 1, 1)),
        ({"decode_fp32_mkl_1t": 2.0, "decode_fp32_mkl_2t": 1.0}, (False, False, 2, 2)),
        (
            {"decode_fp32_mkl_1t": 2.0, "decode_fp32_mkl_2t": 9.0, "train_fp32_mkl_2t": 1.0},
            (False, False, 1, 2),
        ),
        ({"decode_bf16_mkl_1t": 9.0, "decode_bf16_mkl_2t": 3.0}, (True, False, 2, 2)),
    ],
)
def test_the_fastest_way_wins_if_it_is_faster_by_enough(
    given: dict[str, float], expected: tuple[bool, bool, int, int]
) -> None:
    assert choice(_choose(times(**given))) == expected


def test_measuring_leaves_the_model_and_the_callers_threads_alone(tiny_model_folder: Path) -> None:
    loaded = load_model(tiny_model_folder)
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}

    compute = choose_compute(loaded, precision="fp32")

    assert compute.autocast is None
    assert {"decode_fp32_mkl_1t", "train_fp32_mkl_1t"} <= compute.measured.keys()
    assert all(ms > 0 for ms in compute.measured.values())
    assert torch.get_num_threads() == 1
    assert all(torch.equal(weight, before[name]) for name, weight in loaded.model.state_dict().items())
    assert all(weight.grad is None for weight in loaded.model.parameters())
    assert not any(isinstance(module, OneDnnLinear) for module in loaded.model.modules())


def test_what_is_pinned_stays_as_it_is_pinned(tiny_model_folder: Path) -> None:
    compute = choose_compute(load_model(tiny_model_folder), precision="bf16", decode_threads=2, train_threads=1)

    assert compute.autocast == torch.bfloat16
    assert (compute.decode_threads, compute.train_threads) == (2, 1)


@pytest.mark.parametrize("onednn", [False, True])
def test_applying_turns_linear_layers_only_if_chosen(tiny_model_folder: Path, *, onednn: bool) -> None:
    model = load_model(tiny_model_folder).model
    Compute(None, onednn=onednn, decode_threads=1, train_threads=1).apply(model)

    assert any(isinstance(module, OneDnnLinear) for module in model.modules()) == onednn
