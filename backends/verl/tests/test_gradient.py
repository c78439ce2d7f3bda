"""verl's engine, with our rows and its own losses, gives the gradient that the torch backend gives on the same transitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backends.verl.tests.transitions import batch, some

from spangrad.backend import (
    Cispo,
    DualClip,
    GeometricRejection,
    GspoToken,
    KlTerm,
    LossSettings,
    MaskedIS,
    PolicyLoss,
    PpoClip,
    Reinforce,
    Sapo,
    TruncatedIS,
    UpdateBatch,
)
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_verl._learner import VerlLearner
from spangrad_verl._rows import have_gradient, likelihood_rows, selected
from spangrad_verl._tensors import Shares, as_tensors
from spangrad_verl._terms import LIKELIHOOD, loss_terms

pytestmark = pytest.mark.verl

LOSSES: list[PolicyLoss] = [
    PpoClip(),
    PpoClip(0.1, 0.4),
    DualClip(bound=1.5),
    GspoToken(0.05, 0.05),
    Cispo(0.5, 0.5),
    Sapo(),
    Reinforce(),
]
ROWS = some(6)
OFF = [np.asarray(t.logprobs) + 0.3 * np.cos(np.arange(len(t.logprobs))) for t in ROWS.transitions]
"""Log-probabilities of some proximal policy."""
TOKEN_ADVANTAGES = [np.linspace(-1, 1, len(t.action_ids)) + 0.1 * i for i, t in enumerate(ROWS.transitions)]


@pytest.fixture(scope="module")
def torch_backend(model_folder: Path) -> TorchBackend:
    options = TorchOptions(model=str(model_folder), device="cpu", precision="fp32", decode_threads=1, train_threads=1)
    return TorchBackend.load(options, seed=0)


def near(logprobs_of: Any, spread: float) -> list[np.ndarray]:
    """Log-probabilities about the present ones, so that some ratios leave the bounds and some do not."""
    random = np.random.default_rng(3)
    return [row + random.normal(scale=spread, size=len(row)) for row in logprobs_of]


def gradient(
    learner: VerlLearner, worker: Any, update: UpdateBatch, *, imitate: bool = False
) -> dict[str, torch.Tensor]:
    """What verl's engine accumulates for an update, by weight."""
    kept = selected(update, have_gradient(update, imitate=imitate))
    rows = likelihood_rows(kept) if imitate else learner._rows(kept)
    terms = LIKELIHOOD if imitate else loss_terms(update.loss)
    shares = Shares.of([len(t.prompt_ids + t.action_ids) for t in rows.transitions], workers=1)
    data = as_tensors(
        rows,
        shares,
        calculate_entropy=terms.entropy_bonus != 0,
        use_remove_padding=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=24,  # so that there are several micro-batches
        use_fused_kernels=False,
    )
    engine = worker.engine
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(data, loss_function=learner._setup.loss_function(terms))
        return {
            name: weight.grad.full_tensor().clone() if hasattr(weight.grad, "full_tensor") else weight.grad.clone()
            for name, weight in engine.module.named_parameters()
        }


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    whole = torch.cat([wanted[name].flatten() for name in sorted(wanted)]).double()
    other = torch.cat([found[name].flatten() for name in sorted(wanted)]).double()
    assert whole.norm() > 1e-3
    assert (whole - other).norm() / whole.norm() < 1e-5


CASES: dict[str, Callable[[list[np.ndarray]], dict[str, Any]]] = {
    **{
        f"{loss.name}-{number}": lambda present, loss=loss: {  # type: ignore[misc]
            "loss": LossSettings(policy=loss),
            "proximal": near(present, 0.3),
        }
        for number, loss in enumerate(LOSSES)
    },
    "present": lambda _: {},
    "recorded": lambda _: {"proximal": "recorded"},
    "token advantages": lambda present: {"token_advantages": TOKEN_ADVANTAGES, "proximal": near(present, 0.3)},
    "gspo_token with token advantages": lambda present: {
        "loss": LossSettings(policy=GspoToken(0.05, 0.05)),
        "token_advantages": TOKEN_ADVANTAGES,
        "proximal": near(present, 0.3),
    },
    "entropy": lambda _: {"loss": LossSettings(entropy_bonus=0.5)},
    "k1": lambda _: {"loss": LossSettings(kl=KlTerm("k1", 0.7))},
    "k2": lambda _: {"loss": LossSettings(kl=KlTerm("k2", 0.7))},
    "k3": lambda _: {"loss": LossSettings(kl=KlTerm("k3", 0.7))},
    "truncated": lambda _: {"loss": LossSettings(corrections=(TruncatedIS(),))},
    "truncated sequences": lambda _: {"loss": LossSettings(corrections=(TruncatedIS("sequence"),))},
    "masked": lambda _: {"loss": LossSettings(corrections=(MaskedIS(0.1, 5.0),))},
    "masked and geometric": lambda _: {
        # 0.9 < exp(mean of OFF - recorded) < 1.15 for actions of three tokens and more, and not for those of two.
        "loss": LossSettings(corrections=(MaskedIS(0.8, 5.0), GeometricRejection(0.9, 1.15))),
        "proximal": OFF,
    },
    "a weight of nothing": lambda _: {"token_weights": np.array([0.5, 0.0, 0.2, 0.0, 0.1, 0.3])},
}


@pytest.mark.parametrize("case", CASES)
async def test_the_gradient_is_that_of_the_torch_backend(
    case: str, make_learner: Callable[..., Any], torch_backend: TorchBackend
) -> None:
    learner, worker, _ = make_learner()
    reference = torch_backend.policies["policy"].learner
    update = batch(ROWS, **CASES[case](await reference.logprobs(ROWS)))
    if update.loss.kl is not None:  # a reference that is not the present policy: noise on the same weights of both
        await frozen_elsewhere(reference, worker, learner)

    found = gradient(learner, worker, update)

    assert_equal(found, await reference.gradient(update))


async def frozen_elsewhere(reference: Any, worker: Any, learner: VerlLearner) -> None:
    """Freezes both backends' reference at weights a little off, and goes back to the ones before."""
    ours = dict(worker.engine.module.named_parameters())
    theirs = dict(reference._model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in theirs.items()}
    generator = torch.Generator().manual_seed(5)
    noise = {name: 0.02 * torch.randn(weight.shape, generator=generator) for name, weight in sorted(theirs.items())}

    def put(weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in weights.items():
                theirs[name].copy_(weight)
                ours[name].to_local().copy_(weight)

    put({name: before[name] + noise[name] for name in before})
    await reference.freeze_reference()
    await learner.freeze_reference()
    put(before)


async def test_the_gradient_of_maximum_likelihood_is_the_negative_weighted_log_probability(
    make_learner: Callable[..., Any], model_folder: Path
) -> None:
    from transformers import AutoModelForCausalLM

    learner, worker, _ = make_learner()
    update = batch(ROWS)
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    for row, weight in zip(ROWS.transitions, update.token_weights, strict=True):
        ids = torch.tensor([row.prompt_ids + row.action_ids])
        logprobs = model(ids).logits.log_softmax(-1)[0, len(row.prompt_ids) - 1 : -1]
        (-weight * logprobs.gather(1, torch.tensor(row.action_ids)[:, None]).sum()).backward()

    found = gradient(learner, worker, update, imitate=True)

    assert_equal(found, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
