"""The backend as the core sees it: found by name, sampled, trained, saved, and exported for plain transformers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import pytest
from torch import nn

from spangrad.backend import SampleDelta, SampleRequest, SamplingParams, UpdateBatch
from spangrad.errors import BackendError, ModelNotFoundError
from spangrad.plugins import load_plugins
from spangrad.transitions import Transition, TransitionBatch
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch._sampler import TorchSampler
from spangrad_torch.plugin import TorchFactory

PROMPT = (1, 40, 41, 42)
FAST: dict[str, Any] = {"precision": "fp32", "decode_threads": 1, "train_threads": 1}


@dataclass(frozen=True)
class Answer:
    """All deltas of one choice put together."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


async def draw(
    backend: TorchBackend,
    prompt: tuple[int, ...] = PROMPT,
    choices: int = 1,
    begun: asyncio.Event | None = None,
    **params: Any,
) -> list[Answer]:
    """The request's choices; `begun` is set with the first token."""
    deltas: list[list[SampleDelta]] = [[] for _ in range(choices)]
    request = SampleRequest(prompt, SamplingParams(**{"max_tokens": 4, **params}), choices=choices)
    async for delta in backend.policies["policy"].sampler.sample(request):
        deltas[delta.choice].append(delta)
        if begun is not None:
            begun.set()
    return [
        Answer(
            token_ids=tuple(token for delta in parts for token in delta.token_ids),
            logprobs=tuple(logprob for delta in parts for logprob in delta.logprobs),
            versions=tuple(delta.policy_version for delta in parts for _ in delta.token_ids),
        )
        for parts in deltas
    ]


def transitions(answers: Sequence[Answer], **changes: Any) -> TransitionBatch:
    rows = []
    for i, answer in enumerate(answers):
        settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **changes}
        rows.append(
            Transition(
                f"r{i}", 0, "g", f"c{i}", 0, 0, None, "p", 0, PROMPT, answer.token_ids, answer.logprobs,
                reward=None, rollout_reward=0.0, **settings,
            )
        )  # fmt: skip
    return TransitionBatch(tuple(rows))


@pytest.fixture
async def backend(tiny_model_folder: Path) -> AsyncIterator[TorchBackend]:
    backend = TorchBackend.load(TorchOptions(model=str(tiny_model_folder), **FAST), seed=3)
    yield backend
    await backend.close()


async def test_the_installed_plugin_makes_a_working_backend_by_name(tiny_model_folder: Path) -> None:
    factory = load_plugins().backends.get("torch")
    options = factory.check({"model": str(tiny_model_folder), **FAST})
    assert options["max_tokens_per_pass"] == 512
    backend = factory.create(options, seed=0)
    try:
        request = SampleRequest(PROMPT, SamplingParams(max_tokens=2))
        deltas = [delta async for delta in backend.policies["policy"].sampler.sample(request)]
        assert 1 <= sum(len(delta.token_ids) for delta in deltas) <= 2
        assert backend.policies["policy"].version == 0
        rendered = backend.chat_format.render([{"role": "user", "content": "hi"}])
        assert factory.chat_format(options).render([{"role": "user", "content": "hi"}]) == rendered
    finally:
        await backend.close()


def test_the_plugin_loads_without_torch_and_transformers() -> None:
    code = (
        "import sys, spangrad_torch.plugin as p; p.TorchFactory().check({}); "
        "sys.exit(bool({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_wrong_options_are_reported_at_once() -> None:
    wrong = {"modle": "x", "max_rows": "64", "betas": [0.9, 1.0], "decode_threads": 0, "adapter": "lora"}
    with pytest.raises(pydantic.ValidationError) as caught:
        TorchFactory().check({**wrong, "lora": {"rnak": 1}})
    places = {error["loc"][0] for error in caught.value.errors()}
    assert places == {"modle", "max_rows", "betas", "decode_threads", "lora"}


def test_adapter_settings_without_an_adapter_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match='does nothing unless adapter = "lora"'):
        TorchFactory().check({"lora": {"rank": 8}})


def test_checked_options_are_plain_json_and_pass_the_check_again() -> None:
    options = TorchFactory().check({"adapter": "lora", "lora": {"rank": 8, "targets": ["q_proj"]}})
    assert TorchFactory().check(json.loads(json.dumps(options))) == options


def test_a_missing_model_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a model folder"):
        TorchFactory().create({"model": str(tmp_path)}, seed=0)


async def test_wrong_adapter_targets_are_refused_when_the_model_is_loaded(tiny_model_folder: Path) -> None:
    options = {"model": str(tiny_model_folder), **FAST, "adapter": "lora", "lora": {"targets": ["wq"]}}
    with pytest.raises(BackendError, match="no linear layer called wq"):
        TorchFactory().create(options, seed=0)


async def test_describe_is_plain_json_and_counts_what_is_there(backend: TorchBackend) -> None:
    described = json.loads(json.dumps(backend.describe()))
    assert described["parameters"] == described["trained_parameters"] == 26_880
    assert (described["precision"], described["decode_threads"], described["train_threads"]) == ("fp32", 1, 1)
    assert described["context_length"] == described["max_sequence"] == 512
    assert described["prefix_tree"] is True
    assert set(described["versions"]) == {"torch", "transformers", "peft", "spangrad-torch"}


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_the_learner_agrees_with_the_logprobs_the_sampler_recorded(
    backend: TorchBackend, temperature: float
) -> None:
    answers = await draw(backend, choices=8, max_tokens=12, temperature=temperature, seed=1)
    batch = UpdateBatch(transitions(answers, temperature=temperature), 0.0, np.ones(8), np.ones(8))
    report = await backend.policies["policy"].learner.update(batch)
    assert report.metrics["mismatch_tokens"] == report.tokens == sum(len(answer.token_ids) for answer in answers)
    assert abs(report.metrics["mismatch_kl"]) < 1e-5
    off_policy = UpdateBatch(batch.transitions, 0.0, np.ones(8), np.ones(8), proximal="recorded")
    assert (await backend.policies["policy"].learner.update(off_policy)).metrics["approx_kl"] < 1e-9


async def test_truncated_sampling_is_trained_on_policy_without_comparing_logprobs(backend: TorchBackend) -> None:
    answers = await draw(backend, choices=4, top_k=3, seed=1)
    batch = UpdateBatch(transitions(answers, top_k=3), 1e-3, np.ones(4), np.ones(4))
    report = await backend.policies["policy"].learner.update(batch)
    assert (report.metrics["mismatch_tokens"], report.metrics["mismatch_kl"]) == (0.0, 0.0)


async def test_answers_under_way_go_on_through_updates_and_name_the_version_of_each_token(
    backend: TorchBackend,
) -> None:
    first = await draw(backend, choices=4)
    batch = UpdateBatch(transitions(first), 1e-3, np.array([1.0, -1.0, 1.0, -1.0]), np.ones(4))
    begun, updates = asyncio.Event(), 0
    sampling = asyncio.create_task(draw(backend, choices=16, max_tokens=120, begun=begun))
    await begun.wait()
    while not sampling.done():
        await backend.policies["policy"].learner.update(batch)
        updates += 1
        assert await backend.policies["policy"].learner.publish() == backend.policies["policy"].version == updates
    answers = sampling.result()
    for answer in answers:
        assert list(answer.versions) == sorted(answer.versions)
    seen = {version for answer in answers for version in answer.versions}
    assert 0 in seen
    assert len(seen) > 1


async def test_sampling_and_updating_by_turns_learns_what_is_rewarded(backend: TorchBackend) -> None:
    """One token an answer, right when its id is even: from about one half to nearly always."""

    async def rate() -> float:
        answers = await draw(backend, choices=64, max_tokens=1)
        return float(np.mean([answer.token_ids[0] % 2 == 0 for answer in answers]))

    before = await rate()
    for _ in range(30):
        answers = await draw(backend, choices=32, max_tokens=1)
        rewards = np.array([float(answer.token_ids[0] % 2 == 0) for answer in answers])
        advantages = rewards - rewards.mean()
        await backend.policies["policy"].learner.update(
            UpdateBatch(transitions(answers), 1e-2, advantages, np.full(32, 1 / 32))
        )
        await backend.policies["policy"].learner.publish()
    after = await rate()
    assert before < 0.8
    assert after > 0.95


GREEDY = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompt = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
ids = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt):]
chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
print(json.dumps({"ids": ids.tolist(), "chat": list(getattr(chat, "input_ids", chat)), "kind": type(model).__name__,
                  "dtype": str(model.dtype), "modules": sorted(m for m in sys.modules if m.startswith(("spangrad", "peft.")))}))
"""


@pytest.mark.parametrize("adapter", ["none", "lora"])
async def test_the_exported_folder_gives_plain_transformers_the_same_greedy_answer(
    tiny_model_folder: Path, tmp_path: Path, adapter: Literal["none", "lora"]
) -> None:
    options = TorchOptions(model=str(tiny_model_folder), adapter=adapter, **FAST)
    backend = TorchBackend.load(options, seed=0)
    untrained = await draw(backend, max_tokens=8, temperature=0)
    for _ in range(4):
        answers = await draw(backend, choices=4, seed=5)
        advantages = np.array([1.0, -1.0, 0.5, -0.5])
        await backend.policies["policy"].learner.update(UpdateBatch(transitions(answers), 2e-2, advantages, np.ones(4)))
    (trained,) = await draw(backend, max_tokens=8, temperature=0)
    assert trained.token_ids != untrained[0].token_ids
    await backend.policies["policy"].learner.export(tmp_path / "model")
    (again,) = await draw(backend, max_tokens=8, temperature=0)
    assert again == trained
    chat = backend.chat_format.render([{"role": "user", "content": "hi"}])
    await backend.close()

    command = [sys.executable, "-c", GREEDY, str(tmp_path / "model"), json.dumps(PROMPT)]
    finished = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    found = json.loads(finished.stdout)
    assert tuple(found["ids"]) == trained.token_ids
    assert tuple(found["chat"]) == chat
    assert (found["kind"], found["dtype"], found["modules"]) == ("LlamaForCausalLM", "torch.float32", [])
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "spangrad" not in json.dumps(config)


async def test_an_export_can_be_loaded_as_a_backends_model(backend: TorchBackend, tmp_path: Path) -> None:
    await backend.policies["policy"].learner.export(tmp_path / "model")
    other = TorchBackend.load(TorchOptions(model=str(tmp_path / "model"), **FAST), seed=0)
    assert await draw(other, temperature=0) == await draw(backend, temperature=0)
    await other.close()


async def test_after_closing_nothing_is_drawn_or_trained(tiny_model_folder: Path) -> None:
    backend = TorchBackend.load(TorchOptions(model=str(tiny_model_folder), **FAST), seed=3)
    answers = await draw(backend)
    await backend.close()
    await backend.close()
    with pytest.raises(BackendError, match="closed"):
        await draw(backend)
    with pytest.raises(BackendError, match="closed"):
        await backend.policies["policy"].learner.update(UpdateBatch(transitions(answers), 1e-3, np.ones(1), np.ones(1)))


async def test_sampler_and_learner_share_one_set_of_weights(backend: TorchBackend) -> None:
    model = backend._loaded.model
    assert isinstance(model, nn.Module)
    sampler = backend.policies["policy"].sampler
    assert isinstance(sampler, TorchSampler)
    assert sampler._decoder._model is backend.policies["policy"].learner._model is model
