"""Samplers in a process of their own: the same answers, new weights through shared memory, and no process or file left behind."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from spangrad.backend import SampleDelta, Sampler, SampleRequest, SamplingParams, UpdateBatch
from spangrad.errors import BackendError
from spangrad.transitions import Transition, TransitionBatch
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch._model import load_model
from spangrad_torch._precision import choose_compute
from spangrad_torch._weight_file import take_weights, weight_folder, write_weights

PROMPT = (1, 40, 41, 42)
ANSWER = (50, 51, 2)
LORA: dict[str, Any] = {"adapter": "lora", "lora": {"rank": 4}}
NAMES = ("writer", "rewriter")
GREEDY = SampleRequest(PROMPT, SamplingParams(temperature=0.0, max_tokens=6), top_logprobs=2)


def load(folder: Path, sampler: str, options: Mapping[str, Any], **more: Any) -> TorchBackend:
    fast = {"precision": "fp32", "decode_threads": 1, "train_threads": 1, "sampler": sampler}
    return TorchBackend.load(TorchOptions.model_validate({"model": str(folder), **fast, **options}), seed=3, **more)


def batch(policy: str = "policy") -> UpdateBatch:
    transition = Transition(
        "r", 1, "g", "c", 0, 0, None, policy, 0, PROMPT, ANSWER, (-1.0,) * 3, 1.0, 1.0, 0, None, 1.0
    )
    return UpdateBatch(TransitionBatch((transition,)), 1e-2, np.ones(1), np.full(1, 1 / 3))


async def drawn(sampler: Sampler, request: SampleRequest = GREEDY) -> list[SampleDelta]:
    return [delta async for delta in sampler.sample(request)]


def process_of(backend: TorchBackend) -> subprocess.Popen[bytes]:
    assert backend._process is not None
    return backend._process._process


@pytest.fixture
async def apart(tiny_model_folder: Path) -> AsyncIterator[TorchBackend]:
    backend = load(tiny_model_folder, "process", LORA)
    yield backend
    await backend.close()


@pytest.mark.parametrize("options", [LORA, {}], ids=["lora", "full"])
async def test_it_draws_the_very_tokens_that_a_shared_sampler_draws_before_and_after_training(
    tiny_model_folder: Path, options: Mapping[str, Any]
) -> None:
    answers: dict[str, list[Any]] = {}
    for kind in ("shared", "process"):
        backend = load(tiny_model_folder, kind, options, policies=NAMES, initial=True)
        try:
            said = answers[kind] = []
            for name in ("writer", "rewriter", "writer"):
                policy = backend.policies[name]
                for _ in range(2):
                    await policy.learner.update(batch(name))
                assert await policy.learner.publish() == policy.version
                said += [await drawn(other.sampler) for other in backend.policies.values()]
                seeded = SampleRequest(PROMPT, SamplingParams(max_tokens=5, seed=7), choices=3)
                said.append(sorted(await drawn(policy.sampler, seeded), key=lambda delta: delta.choice))
            assert backend.initial is not None
            said.append(await drawn(backend.initial))
        finally:
            await backend.close()
    assert answers["process"] == answers["shared"]
    assert {delta.policy_version for said in answers["process"] for delta in said} == {0, 2, 4}


async def test_weights_that_are_not_published_are_not_drawn_with(apart: TorchBackend) -> None:
    policy = apart.policies["policy"]
    before = await drawn(policy.sampler)
    await policy.learner.update(batch())
    assert (await drawn(policy.sampler), policy.version) == (before, 0)
    assert await policy.learner.publish() == policy.version == 1
    after = await drawn(policy.sampler)
    assert after != before
    assert {delta.policy_version for delta in after} == {1}


async def test_an_answer_under_way_goes_on_with_the_new_weights_and_says_so(apart: TorchBackend) -> None:
    policy = apart.policies["policy"]
    await policy.learner.update(batch())
    # So many answers take a second, the weights of so small a model a few milliseconds.
    long = SampleRequest(PROMPT, SamplingParams(temperature=5.0, max_tokens=500, seed=1), choices=64)
    versions: dict[int, list[int]] = {}
    async for delta in policy.sampler.sample(long):
        if not versions:
            await policy.learner.publish()
        versions.setdefault(delta.choice, []).append(delta.policy_version)
    assert all(seen == sorted(seen) for seen in versions.values())
    assert {(seen[0], seen[-1]) for seen in versions.values()} >= {(0, 1)}


async def test_a_loaded_checkpoint_is_drawn_with(apart: TorchBackend, tmp_path: Path) -> None:
    policy = apart.policies["policy"]
    await policy.learner.update(batch())
    await policy.learner.publish()
    saved = await drawn(policy.sampler)
    await policy.learner.save(tmp_path / "saved")
    await policy.learner.update(batch())
    await policy.learner.publish()
    assert [d.logprobs for d in await drawn(policy.sampler)] != [d.logprobs for d in saved]
    await policy.learner.load(tmp_path / "saved")
    assert [d.logprobs for d in await drawn(policy.sampler)] == [d.logprobs for d in saved]
    assert policy.version == 3  # versions never go back


async def test_bad_requests_are_refused_as_by_a_shared_sampler(apart: TorchBackend) -> None:
    sampler = apart.policies["policy"].sampler
    with pytest.raises(BackendError, match="The prompt is empty"):
        await drawn(sampler, SampleRequest((), SamplingParams()))
    assert sampler.context_length == 512
    with pytest.raises(BackendError, match="leaves no room in the model's context of 512") as caught:
        await drawn(sampler, SampleRequest((1,) * 512, SamplingParams()))
    assert caught.value.cure.startswith("Shorten the conversation")
    assert len(await drawn(sampler)) == 6


async def test_nothing_is_kept_of_an_answer_nobody_waits_for(apart: TorchBackend) -> None:
    sampler, process = apart.policies["policy"].sampler, apart._process
    assert process is not None
    answer = sampler.sample(SampleRequest(PROMPT, SamplingParams(temperature=5.0, max_tokens=500, seed=2)))
    assert (await anext(answer)).choice == 0
    assert len(process._waiting) == 1
    await answer.aclose()
    assert not process._waiting
    assert len(await drawn(sampler)) == 6


async def test_when_the_process_is_killed_whoever_waits_hears_of_it_and_so_does_whoever_asks_later(
    apart: TorchBackend,
) -> None:
    policy = apart.policies["policy"]
    answer = policy.sampler.sample(
        SampleRequest(PROMPT, SamplingParams(temperature=5.0, max_tokens=500, seed=2), choices=64)
    )
    await anext(answer)
    process_of(apart).kill()
    with pytest.raises(BackendError, match=r"The sampler's process ended \(killed by signal 9\)") as caught:
        async for _ in answer:
            pass
    assert "short of memory" in caught.value.cure
    with pytest.raises(BackendError, match="killed by signal 9"):
        await drawn(policy.sampler)
    await policy.learner.update(batch())
    with pytest.raises(BackendError, match="killed by signal 9"):
        await policy.learner.publish()


async def test_closing_ends_the_process_and_leaves_no_file(tiny_model_folder: Path) -> None:
    backend = load(tiny_model_folder, "process", {})
    process = process_of(backend)
    assert backend._process is not None
    folder = backend._process._folder
    assert folder.is_dir()
    answer = backend.policies["policy"].sampler.sample(
        SampleRequest(PROMPT, SamplingParams(temperature=5.0, max_tokens=500, seed=2))
    )
    await anext(answer)
    await backend.close()
    with pytest.raises(BackendError, match="The sampler is closed"):
        async for _ in answer:
            pass
    assert process.poll() == 0
    assert not folder.exists()
    await backend.close()


def test_the_process_ends_when_its_parent_is_killed(tiny_model_folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import sys\nfrom spangrad_torch import TorchBackend, TorchOptions\n"
        f"options = TorchOptions(model={str(tiny_model_folder)!r}, precision='fp32', decode_threads=1, train_threads=1, "
        "sampler='process')\n"
        "backend = TorchBackend.load(options, seed=0)\nprint(backend._process._process.pid, backend._process._folder, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        number, folder = parent.stdout.readline().split()
        process = os.pidfd_open(int(number))
        try:
            parent.kill()
            ended, _, _ = select.select([process], [], [], 60)  # readable once the process has ended
        finally:
            os.close(process)
    assert ended
    assert not Path(folder).exists()


def test_a_model_that_cannot_be_loaded_there_is_said(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The model goes away after the learner has loaded it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    options = TorchOptions(model=str(folder), precision="fp32", decode_threads=1, train_threads=1, sampler="process")
    loaded = load_model(options.model)
    compute = choose_compute(loaded, precision="fp32", decode_threads=1, train_threads=1)
    (folder / "config.json").unlink()
    with pytest.raises(BackendError, match="is not a model folder"):
        TorchBackend(loaded, compute, options, seed=0)


class TestWeightFile:
    def test_only_what_is_trained_is_written_and_lies_in_the_file_itself_afterwards(self, tmp_path: Path) -> None:
        path = tmp_path / "weights"
        given = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}
        write_weights(given, path)
        assert set(load_file(path)) == {"a", "b"}
        taken = {"a": torch.nn.Parameter(torch.zeros(2, 3)), "b": torch.nn.Parameter(torch.zeros(4))}
        take_weights(path, taken)
        path.unlink()
        assert torch.equal(taken["a"], given["a"])
        assert torch.equal(taken["b"], given["b"])

    def test_a_place_without_room_is_said_and_left_clean(self, tmp_path: Path) -> None:
        with pytest.raises(BackendError, match="cannot be handed to the sampler") as caught:
            write_weights({"a": torch.zeros(4)}, tmp_path / "nowhere" / "weights")
        assert 'sampler = "shared"' in caught.value.cure

    def test_its_folder_is_in_memory_where_there_is_one(self) -> None:
        folder = weight_folder()
        in_memory = Path("/dev/shm")  # noqa: S108 - only looked at
        assert folder.parent == (in_memory if os.access(in_memory, os.W_OK) else Path(tempfile.gettempdir()))
        folder.rmdir()
