"""What an update reports about ratios, clipping and mismatch, and the log-probabilities that decoupled updates ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from spangrad.backend import Gspo, LossSettings, MaskedIS, PolicyLoss, PpoClip, Reinforce, Sapo, UpdateBatch
from spangrad.transitions import FloatArray, Transition, TransitionBatch
from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel, load_model
from spangrad_torch._options import TorchOptions
from spangrad_torch._sampler import TorchSampler

CALLS = (((3, 4), (5, 6, 7)), ((3, 4), (5, 6)), ((3, 4, 5), (8,)))
"""Prompts and actions; they share tokens."""
GAINS = ((0.3, -0.1, 0.1), (-0.2, -0.4), (0.05,))
"""How much likelier, in logarithms, the policy finds each token than the proximal policy does."""
GAPS = ((0.02, 0.3, -0.05), (0.01, -0.4), (0.0,))
"""How much likelier the proximal policy finds each token than the sampler did."""


@pytest.fixture
def loaded(tiny_model_folder: Path) -> LoadedModel:
    return load_model(tiny_model_folder)


@pytest.fixture
async def learner(loaded: LoadedModel, tiny_model_folder: Path) -> AsyncIterator[TorchLearner]:
    """With packs so small that there are several."""
    sampler = TorchSampler(loaded, threads=1)
    options = TorchOptions(model=str(tiny_model_folder), max_tokens_per_pass=4)
    learner = TorchLearner(loaded, sampler, options, threads=1)
    yield learner
    await learner.close()
    await sampler.close()


@torch.no_grad()
def present(loaded: LoadedModel, prompt: Sequence[int], action: Sequence[int]) -> FloatArray:
    """(A,) log-probabilities of an action's tokens: one sequence, no mask, no packing."""
    ids = torch.tensor([[*prompt, *action]])
    logprobs = loaded.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    found: FloatArray = logprobs.gather(1, torch.tensor(action)[:, None])[:, 0].double().numpy()
    return found


def make_batch(loaded: LoadedModel, policy: PolicyLoss) -> UpdateBatch:
    """The calls with log-probabilities at the distances above, a masked correction and advantages of both signs."""
    own = [present(loaded, prompt, action) for prompt, action in CALLS]
    proximal = [row - np.array(gain) for row, gain in zip(own, GAINS, strict=True)]
    recorded = [row - np.array(gap) for row, gap in zip(proximal, GAPS, strict=True)]
    rows = [
        Transition("r", 0, "g", "c", 0, 0, None, "p", 0, prompt, action, tuple(row.tolist()), 1.0, 1.0, 0, None, 0.0)
        for (prompt, action), row in zip(CALLS, recorded, strict=True)
    ]
    loss = LossSettings(policy, corrections=(MaskedIS(0.9, 1.1),))
    numbers = np.array([1.0, -1.0, 1.0]), np.ones(3)
    return UpdateBatch(TransitionBatch(tuple(rows)), 1e-3, *numbers, proximal=proximal, loss=loss)


async def test_ratios_and_clipping_are_those_of_tokens(loaded: LoadedModel, learner: TorchLearner) -> None:
    metrics = (await learner.update(make_batch(loaded, PpoClip(0.2, 0.2)))).metrics
    ratios = np.exp([0.3, -0.1, 0.1, -0.2, -0.4, 0.05])
    assert metrics["ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(np.exp(0.3), rel=1e-4)
    # exp(0.3) = 1.35 of a good call, exp(-0.4) = 0.67 of a bad one; exp(-0.2) = 0.82 is inside
    assert metrics["clip_fraction"] == pytest.approx(2 / 6)


async def test_gspo_reports_the_ratios_of_actions(loaded: LoadedModel, learner: TorchLearner) -> None:
    metrics = (await learner.update(make_batch(loaded, Gspo(0.2, 0.2)))).metrics
    means = np.exp([0.1, 0.1, 0.1, -0.3, -0.3, 0.05])
    assert metrics["ratio_mean"] == pytest.approx(means.mean(), rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(np.exp(0.1), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(2 / 6)  # both tokens of the bad call: exp(-0.3) = 0.74


async def test_mismatch_and_corrections_are_reported(loaded: LoadedModel, learner: TorchLearner) -> None:
    metrics = (await learner.update(make_batch(loaded, PpoClip()))).metrics
    # weights exp(0.02), exp(-0.05), exp(0.01) and 1 are kept; exp(0.3) = 1.35 and exp(-0.4) = 0.67 are not
    assert metrics["masked_fraction"] == pytest.approx(2 / 6)
    assert metrics["correction_mean"] == pytest.approx(np.exp([0.02, -0.05, 0.01, 0.0]).sum() / 6, rel=1e-4)
    # log sampler - log policy is minus gain and gap: -(-0.25) - (-0.12)
    assert metrics["mismatch_kl"] == pytest.approx((0.25 + 0.12) / 6, abs=1e-5)
    assert metrics["mismatch_tokens"] == 6
    gains = np.array([0.3, -0.1, 0.1, -0.2, -0.4, 0.05])
    assert metrics["approx_kl"] == pytest.approx((np.exp(gains) - 1 - gains).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("policy", "absent"), [(Sapo(), {"clip_fraction"}), (Reinforce(), {"clip_fraction", "ratio_max"})]
)
async def test_a_loss_reports_nothing_that_it_has_not(
    loaded: LoadedModel, learner: TorchLearner, policy: PolicyLoss, absent: set[str]
) -> None:
    metrics = (await learner.update(make_batch(loaded, policy))).metrics
    assert not absent & metrics.keys()
    assert "masked_fraction" in metrics


async def test_the_learner_tells_the_log_probabilities_of_the_present_weights(
    loaded: LoadedModel, learner: TorchLearner
) -> None:
    batch = make_batch(loaded, PpoClip())
    for _ in range(2):  # before and after an update
        found = await learner.logprobs(batch.transitions)
        for row, (prompt, action) in zip(found, CALLS, strict=True):
            assert row == pytest.approx(present(loaded, prompt, action), abs=1e-5)
        version = await learner.publish()
        await learner.update(batch)
    assert version == 1  # asking makes no version


async def test_asking_about_no_transitions_is_answered(learner: TorchLearner) -> None:
    assert await learner.logprobs(TransitionBatch(())) == []
