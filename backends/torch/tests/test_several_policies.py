"""Several policies on one model: shared where nothing is trained, apart where something is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spangrad.backend import Sampler, SampleRequest, SamplingParams, UpdateBatch
from spangrad.transitions import Transition, TransitionBatch
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch._linear import OneDnnLinear, has_onednn, use_onednn

PROMPT = (1, 40, 41, 42)
ANSWER = (50, 51, 2)
LORA: dict[str, Any] = {"adapter": "lora", "lora": {"rank": 4}}
NAMES = ("writer", "rewriter")


def load(folder: Path, options: Mapping[str, Any]) -> TorchBackend:
    fast = {"precision": "fp32", "decode_threads": 1, "train_threads": 1}
    return TorchBackend.load(
        TorchOptions.model_validate({"model": str(folder), **fast, **options}), seed=3, policies=NAMES, initial=True
    )


def batch(learning_rate: float = 1e-2) -> UpdateBatch:
    transition = Transition(
        "r", 1, "g", "c", 0, 0, None, "writer", 0, PROMPT, ANSWER, (-1.0,) * 3, 1.0, 1.0, 0, None, 1.0
    )
    return UpdateBatch(TransitionBatch((transition,)), learning_rate, np.ones(1), np.full(1, 1 / 3))


async def says(sampler: Sampler) -> tuple[float, ...]:
    """The likeliest answer's log-probabilities: other weights would give others."""
    request = SampleRequest(PROMPT, SamplingParams(temperature=0.0, max_tokens=4))
    return tuple([logprob async for delta in sampler.sample(request) for logprob in delta.logprobs])


@pytest.mark.parametrize("options", [LORA, {}], ids=["lora", "full"])
async def test_training_one_policy_moves_it_and_nothing_else(
    tiny_model_folder: Path, options: Mapping[str, Any]
) -> None:
    backend = load(tiny_model_folder, options)
    try:
        assert backend.initial is not None
        writer, rewriter = (backend.policies[name] for name in NAMES)
        before = await says(backend.initial)
        assert await says(writer.sampler) == await says(rewriter.sampler) == before
        for _ in range(3):
            await writer.learner.update(batch())
        assert (writer.version, rewriter.version) == (3, 0)
        assert await says(rewriter.sampler) == await says(backend.initial) == before
        assert await says(writer.sampler) != before

        trained = await says(writer.sampler)
        await rewriter.learner.update(batch(learning_rate=3e-2))
        assert await says(writer.sampler) == trained
        assert await says(rewriter.sampler) not in (trained, before)
    finally:
        await backend.close()


@pytest.mark.parametrize("options", [LORA, {}], ids=["lora", "full"])
async def test_a_policy_among_others_learns_as_it_does_alone(
    tiny_model_folder: Path, options: Mapping[str, Any]
) -> None:
    """The first policy draws its adapters' first weights from the same seed as the only one of another backend."""
    fast = {"precision": "fp32", "decode_threads": 1, "train_threads": 1}
    alone = TorchBackend.load(
        TorchOptions.model_validate({"model": str(tiny_model_folder), **fast, **options}), seed=3, policies=["writer"]
    )
    together = load(tiny_model_folder, options)
    try:
        for backend in (alone, together):
            for _ in range(2):
                await backend.policies["writer"].learner.update(batch())
        await together.policies["rewriter"].learner.update(batch())
        assert await says(alone.policies["writer"].sampler) == await says(together.policies["writer"].sampler)
    finally:
        await alone.close()
        await together.close()


async def test_adapters_share_the_models_weights_and_say_what_they_cost(tiny_model_folder: Path) -> None:
    lora, full = load(tiny_model_folder, LORA), load(tiny_model_folder, {})
    try:
        writer, rewriter = (dict(lora.policies[name].learner._model.named_parameters()) for name in NAMES)
        assert writer.keys() == rewriter.keys()
        for name, weight in writer.items():
            assert (weight is rewriter[name]) == ("lora_" not in name), name
        adapter = sum(weight.numel() for name, weight in writer.items() if "lora_" in name)
        assert lora.describe()["parameters"] == 26_880 + 2 * adapter
        assert lora.describe()["trained_parameters"] == 2 * adapter
        assert full.describe()["parameters"] == full.describe()["trained_parameters"] == 2 * 26_880
        assert lora.describe()["policies"] == ["writer", "rewriter"]
    finally:
        await lora.close()
        await full.close()


@pytest.mark.parametrize("options", [LORA, {}], ids=["lora", "full"])
async def test_each_policy_is_saved_loaded_and_exported_by_itself(
    tiny_model_folder: Path, tmp_path: Path, options: Mapping[str, Any]
) -> None:
    first, second = load(tiny_model_folder, options), load(tiny_model_folder, options)
    try:
        await first.policies["writer"].learner.update(batch())
        for name in NAMES:
            await first.policies[name].learner.save(tmp_path / name)
            await second.policies[name].learner.load(tmp_path / name)
        for name in NAMES:
            assert await says(first.policies[name].sampler) == await says(second.policies[name].sampler)
        await first.policies["writer"].learner.export(tmp_path / "model")
        exported = load(tmp_path / "model", {})
        try:
            found = await says(exported.policies["writer"].sampler)
            assert found == pytest.approx(await says(first.policies["writer"].sampler), abs=1e-5)
        finally:
            await exported.close()
    finally:
        await first.close()
        await second.close()


async def test_the_policies_of_one_model_may_be_asked_and_trained_at_the_same_time(tiny_model_folder: Path) -> None:
    """A sampler's forward pass must never see the adapters of the policy that is being trained."""
    backend = load(tiny_model_folder, LORA)
    try:
        sampler = backend.policies["rewriter"].sampler
        expected = await says(sampler)
        done: list[tuple[float, ...]] = []

        async def ask() -> None:
            done.extend([await says(sampler) for _ in range(30)])

        async def train() -> None:
            for _ in range(30):
                await backend.policies["writer"].learner.update(batch())

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            group.create_task(train())
        assert done == [expected] * 30
    finally:
        await backend.close()


async def test_prepared_weights_are_shared_too(tiny_model_folder: Path) -> None:
    backend = load(tiny_model_folder, LORA)
    try:
        if not has_onednn():
            pytest.fail("this test needs a torch with oneDNN, as every CPU build for x86-64 has it")
        models = [backend.policies[name].learner._model for name in NAMES]
        for model in models:
            use_onednn(model)
        with torch.no_grad():
            for model in models:
                model(torch.tensor([[1, 2, 3]]))
        layers = [
            {name: m for name, m in model.named_modules() if isinstance(m, OneDnnLinear) and "lora_" not in name}
            for model in models
        ]
        assert layers[0]
        for name, layer in layers[0].items():
            assert layer.prepared is not None
            assert layer.prepared is layers[1][name].prepared
    finally:
        await backend.close()
