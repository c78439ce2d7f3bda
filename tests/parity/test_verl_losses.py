"""spangrad's losses, KL terms and corrections beside verl's own (verl.trainer.ppo), on random batches.

The weights are verl's "token-mean" and "seq-mean-token-mean", so that a loss and its gradient can be compared as a whole. Runs in
an environment of its own: see requirements.txt and verl.txt beside this file.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spangrad.backend import (
    Cispo,
    Correction,
    DualClip,
    GeometricRejection,
    Gspo,
    GspoToken,
    KlForm,
    MaskedIS,
    PolicyLoss,
    Sapo,
    TruncatedIS,
)
from spangrad_torch.losses import correction_factor, kl_term, log_ratio, policy_losses

pytestmark = pytest.mark.parity

SEEDS = range(4)
ROWS, WIDTH = 12, 9


@pytest.fixture(scope="module")
def verl() -> Any:
    """verl's functions. Imported here, so that this file can be collected where verl is not; the tests need it, though."""
    return _imported("core_algos")


@pytest.fixture(scope="module")
def verl_corrections() -> Any:
    """Those of verl that correct for the rollout's policy."""
    return _imported("rollout_corr_helper")


def _imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl and ray warn about their own dependencies when they are imported
        return importlib.import_module(f"verl.trainer.ppo.{name}")


class Batch:
    """Rows of 1 to WIDTH tokens, padded as verl has them."""

    def __init__(self, seed: int, spread: float = 0.3) -> None:
        random = np.random.default_rng(seed)
        lengths = random.integers(1, WIDTH + 1, ROWS)
        self.mask = torch.from_numpy((np.arange(WIDTH)[None] < lengths[:, None]).astype(np.float64))
        self.old = torch.from_numpy(-random.uniform(0.1, 3.0, (ROWS, WIDTH)))
        self.new = (self.old + torch.from_numpy(random.normal(0, spread, (ROWS, WIDTH)))).requires_grad_()
        self.advantages = torch.from_numpy(random.normal(size=(ROWS, 1))).expand(ROWS, WIDTH)

    def flat(self, matrix: Tensor) -> Tensor:
        """(M,) without the padding."""
        return matrix[self.mask.bool()]

    @property
    def actions(self) -> Tensor:
        """(M,) the row of each token."""
        return self.flat(torch.arange(ROWS)[:, None].expand(ROWS, WIDTH))

    @property
    def sequence_weights(self) -> Tensor:
        """(M,) of verl's "seq-mean-token-mean"."""
        return self.flat((self.mask / self.mask.sum(1, keepdim=True)) / ROWS)


LOSSES: dict[str, tuple[PolicyLoss, str, dict[str, Any]]] = {
    "dual_clip": (
        DualClip(0.2, 0.3, 1.5),
        "vanilla",
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 1.5},
    ),
    "gspo": (Gspo(0.03, 0.04), "gspo", {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}),
    "gspo_token": (GspoToken(0.03, 0.04), "gspo", {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}),
    "cispo": (Cispo(0.2, 0.3), "cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}),
    "sapo": (Sapo(1.0, 1.5), "sapo", {"tau_pos": 1.0, "tau_neg": 1.5}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_agree(verl: Any, name: str, seed: int) -> None:
    settings, theirs, options = LOSSES[name]
    batch = Batch(seed)
    config = verl.ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    expected, _ = verl.get_policy_loss_fn(theirs)(
        batch.old, batch.new, batch.advantages, batch.mask, loss_agg_mode="seq-mean-token-mean", config=config
    )
    (expected_gradient,) = torch.autograd.grad(expected, batch.new)

    new = batch.flat(batch.new)
    made = policy_losses(
        settings, new, log_ratio(new, batch.flat(batch.old)), batch.flat(batch.advantages), batch.actions
    )
    loss = (batch.sequence_weights * made.losses).sum()
    (gradient,) = torch.autograd.grad(loss, batch.new)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)
    assert gradient.abs().max() > 1e-3
    if made.clipped is not None:
        assert made.clipped.any()
        assert not made.clipped.all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("form", "theirs"), [("k1", "k1+"), ("k2", "k2"), ("k3", "k3")])
def test_a_kl_term_and_its_gradient_agree(verl: Any, form: KlForm, theirs: str, seed: int) -> None:
    """verl's "k1+" has the value of k1 and the gradient of k2, as ours has."""
    batch = Batch(seed)
    expected = verl.kl_penalty(batch.new, batch.old, theirs)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), batch.new)
    ours = kl_term(form, batch.new, batch.old)
    (gradient,) = torch.autograd.grad(ours.sum(), batch.new)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("corrections", "level", "threshold"),
    [
        ((TruncatedIS("token", 1.2),), "token", 1.2),
        ((TruncatedIS("sequence", 1.5),), "sequence", 1.5),
        ((MaskedIS(0.8, 1.3),), "token", "0.8_1.3"),
    ],
    ids=["token", "sequence", "masked"],
)
def test_importance_weights_agree(
    verl_corrections: Any, corrections: tuple[Correction, ...], level: str, threshold: float | str, seed: int
) -> None:
    batch = Batch(seed)
    gap = batch.new.detach() - batch.old
    expected, _ = verl_corrections.compute_rollout_correction_weights(
        gap, batch.mask, rollout_is=level, rollout_is_threshold=threshold
    )
    ours = correction_factor(corrections, batch.flat(gap), batch.actions)
    torch.testing.assert_close(ours, batch.flat(expected), rtol=1e-6, atol=1e-9)
    assert len(set(ours.tolist())) > 2


@pytest.mark.parametrize("seed", SEEDS)
def test_geometric_rejection_agrees(verl_corrections: Any, seed: int) -> None:
    batch = Batch(seed, spread=0.05)
    gap = batch.new.detach() - batch.old
    expected, _ = verl_corrections.compute_rollout_rejection_mask(
        gap, batch.mask, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.99_1.01"
    )
    ours = correction_factor((GeometricRejection(0.99, 1.01),), batch.flat(gap), batch.actions)
    assert torch.equal(ours, batch.flat(expected).to(ours))
    assert 0 < ours.mean() < 1
