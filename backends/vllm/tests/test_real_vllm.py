"""Real vLLM servers, on the CPU or a GPU, beside the torch backend's own sampler: the same ids, and nearly the same log-probabilities.

Runs in an environment of its own, `nox -s vllm`; or with the Python of another one in SPANGRAD_VLLM_PYTHON.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from spangrad.backend import Backend, SampleDelta, SampleRequest, SamplingParams, UpdateBatch
from spangrad.plugins import load_plugins
from spangrad.transitions import Transition, TransitionBatch
from spangrad_vllm import VllmServers

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PYTHON = os.environ.get("SPANGRAD_VLLM_PYTHON", sys.executable)
PROMPT = (1, *range(40, 90))
TAUGHT = (50, 51, 2)
TOLERANCE = 1e-4
"""Of a log-probability in fp32: both add up in orders of their own."""
LONG_TOLERANCE = 1e-3
"""The same of answers of hundreds of tokens: the model is random, with logits in the tens, and each place adds to the difference."""


@dataclass(frozen=True)
class Pair:
    """The same model twice, trained alike: drawn by vLLM, and by the torch backend itself."""

    served: Backend
    own: Backend

    async def train(self) -> None:
        """One step of both, which servers draw with afterwards."""
        transition = Transition(
            "r", 1, "g", "c", 0, 0, None, "policy", 0, PROMPT, TAUGHT, (-1.0,) * 3, 1.0, 1.0, 0, None, 1.0
        )
        batch = UpdateBatch(TransitionBatch((transition,)), 1e-2, np.ones(1), np.full(1, 1 / 3))
        for backend in (self.own, self.served):
            learner = backend.policies["policy"].learner
            await learner.update(batch)
            await learner.publish()

    async def assert_alike(self) -> None:
        """Both draw the same, at the same version."""
        ours, theirs = [await drawn(backend, max_tokens=12, temperature=0.0) for backend in (self.own, self.served)]
        assert ids(theirs) == ids(ours)
        assert logprobs(theirs) == pytest.approx(logprobs(ours), abs=TOLERANCE)
        assert theirs[-1].finish_reason == ours[-1].finish_reason
        assert {delta.policy_version for delta in theirs} == {delta.policy_version for delta in ours}


async def drawn(backend: Backend, prompt: tuple[int, ...] = PROMPT, **params: Any) -> list[SampleDelta]:
    request = SampleRequest(prompt, SamplingParams(**params))
    return [delta async for delta in backend.policies["policy"].sampler.sample(request)]


def ids(deltas: list[SampleDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def logprobs(deltas: list[SampleDelta]) -> list[float]:
    return [value for delta in deltas for value in delta.logprobs]


def servers_of(backend: Backend) -> VllmServers:
    """Behind the torch backend."""
    servers = backend._serving._served  # type: ignore[attr-defined]  # to kill one
    assert isinstance(servers, VllmServers)
    return servers


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["full", "lora"])
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """With all weights trained, and with adapters. The model's output layer is its embedding, which is the harder case."""
    from backends.torch.tests.conftest import make_tiny_model  # noqa: PLC0415 - torch is where this runs, not where it is collected

    # vLLM's kernels for a CPU take heads of 32 numbers and more.
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), width=128)
    lora = {"adapter": "lora", "lora": {"rank": 4}} if request.param == "lora" else {}
    options = {"model": str(folder), "device": "cpu", "precision": "fp32", "train_threads": 1, **lora}
    table = {"python": PYTHON, "dtype": "float32", "start_timeout": 400}
    factory = load_plugins().backends.get("torch")
    own = factory.create({**options, "decode_threads": 1}, seed=3)
    served = factory.create({**options, "sampler": "vllm", "vllm": table}, seed=3)
    yield Pair(served, own)
    await served.close()
    await own.close()


async def test_vllm_draws_what_the_torch_backend_draws_before_and_after_training(pair: Pair) -> None:
    await pair.assert_alike()
    before = await drawn(pair.served, max_tokens=12, temperature=0.0)
    for _ in range(2):
        await pair.train()
        await pair.assert_alike()
    assert logprobs(await drawn(pair.served, max_tokens=12, temperature=0.0)) != logprobs(before)


async def test_the_log_probabilities_are_those_of_the_distribution_that_is_drawn_from(pair: Pair) -> None:
    """At a temperature, and cut off: what is left has to be told as a whole of 1."""
    deltas = await drawn(pair.served, max_tokens=1, temperature=0.5, top_k=1)
    assert logprobs(deltas) == pytest.approx([0.0], abs=TOLERANCE)


async def test_a_server_that_is_killed_in_mid_answer_is_replaced_and_the_answer_goes_on(pair: Pair) -> None:
    await pair.train()  # the new server has to have these weights
    servers = servers_of(pair.served)
    (first,) = servers.describe()["servers"]
    process = servers._pools[0]._servers[0].process
    assert process is not None
    wanted = await drawn(pair.own, max_tokens=200, temperature=0.0, prompt=(1, 7, 8))
    request = SampleRequest((1, 7, 8), SamplingParams(max_tokens=200, temperature=0.0))

    deltas: list[SampleDelta] = []
    async for delta in pair.served.policies["policy"].sampler.sample(request):
        if not deltas:
            os.killpg(process.pid, signal.SIGKILL)
        deltas.append(delta)

    assert ids(deltas) == ids(wanted)
    assert logprobs(deltas) == pytest.approx(logprobs(wanted), abs=LONG_TOLERANCE)
    (second,) = servers.describe()["servers"]
    assert second != first
    await pair.assert_alike()
