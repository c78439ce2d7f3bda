"""The losses give the numbers of their formulas, and the gradients those formulas have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spangrad.backend import (
    LOSSES,
    Correction,
    GeometricRejection,
    KlForm,
    MaskedIS,
    PolicyLoss,
    TruncatedIS,
)
from spangrad_torch import losses


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (result,) = torch.autograd.grad(loss.sum(), of)
    return result.tolist()


def test_on_policy_the_clipped_loss_is_minus_the_advantage_and_its_gradient_that_of_reinforce() -> None:
    logprob = values(-1.0, -2.0, -0.5)
    advantage = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    ratio = losses.log_ratio(logprob, logprob.detach())
    loss = losses.ppo_clip(ratio, advantage, clip_low=0.2, clip_high=0.2)
    assert loss.tolist() == [-2.0, 1.0, 0.0]
    assert gradient(loss, logprob) == [-2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside the bounds: -ratio x advantage, and d/dlogprob gives the same
        (1.5, 2.0, -2.6, 0.0),  # a good token is likely enough: held at 1 + 0.3
        (0.5, 2.0, -1.0, -1.0),  # a good token got unlikely: full gradient back
        (0.5, -2.0, 1.8, 0.0),  # a bad token is unlikely enough: held at 1 - 0.1
        (1.5, -2.0, 3.0, 3.0),  # a bad token got likely: full gradient back
    ],
)
def test_clipping_holds_only_the_side_the_advantage_pushes_to(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    logprob = values(-3.0 + math.log(ratio))
    log_ratio = losses.log_ratio(logprob, torch.tensor([-3.0], dtype=torch.float64))
    signed = torch.tensor([advantage], dtype=torch.float64)
    result = losses.ppo_clip(log_ratio, signed, clip_low=0.1, clip_high=0.3)
    assert result.item() == pytest.approx(loss)
    assert gradient(result, logprob) == pytest.approx([slope])
    clipped = losses.is_clipped(log_ratio, signed, clip_low=0.1, clip_high=0.3)
    assert clipped.tolist() == [slope == 0.0]


def test_owners_of_one_shared_token_are_clipped_by_their_own_advantages() -> None:
    node = values(math.log(1.5))
    logprob = node[torch.tensor([0, 0])]
    advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
    ratio = losses.log_ratio(logprob, torch.zeros(2, dtype=torch.float64))
    loss = losses.ppo_clip(ratio, advantage, clip_low=0.2, clip_high=0.2)
    assert loss.tolist() == pytest.approx([-1.2, 1.5])
    assert gradient(loss, node) == pytest.approx([1.5])


def test_a_ratio_between_unrelated_policies_stays_finite() -> None:
    ratio = losses.log_ratio(values(0.0, -1e9), torch.tensor([-1e9, 0.0], dtype=torch.float64))
    assert ratio.tolist() == [20.0, -20.0]


def test_k3_is_the_estimator_of_its_formula_and_zero_between_equal_policies() -> None:
    logprob = values(-1.0, -1.0, -2.0)
    other = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    expected = [0.0, math.exp(-0.5) + 0.5 - 1.0, math.exp(1.0) - 1.0 - 1.0]
    assert losses.k3(logprob, other).tolist() == pytest.approx(expected)
    assert gradient(losses.k3(logprob, other), logprob) == pytest.approx([0.0, 1 - math.exp(-0.5), 1 - math.exp(1.0)])


def test_the_mean_of_k3_over_all_tokens_is_the_kl_divergence() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expectation = (p * losses.k3(p.log(), q.log())).sum()
    assert expectation.item() == pytest.approx((p * (p / q).log()).sum().item())


def test_negative_log_likelihood_is_what_its_name_says() -> None:
    assert losses.negative_log_likelihood(values(-0.25)).tolist() == [0.25]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (5.0, -2.0, 6.0, 0.0),  # max(-10, -2.4) = -2.4, min with the ratio's -10 is -10; held at -2 x 3
        (2.0, -2.0, 4.0, 4.0),  # below the bound: PPO's
        (0.5, -2.0, 1.6, 0.0),  # held at 1 - 0.2 by PPO's own clipping
        (5.0, 2.0, -2.4, 0.0),  # good tokens have no second bound: held at 1 + 0.2
    ],
)
def test_dual_clip_holds_what_a_bad_token_can_lose(ratio: float, advantage: float, loss: float, slope: float) -> None:
    logprob, bounds = values(-3.0 + math.log(ratio)), {"clip_low": 0.2, "clip_high": 0.2, "bound": 3.0}
    log_ratio = losses.log_ratio(logprob, torch.tensor([-3.0], dtype=torch.float64))
    signed = torch.tensor([advantage], dtype=torch.float64)
    result = losses.dual_clip(log_ratio, signed, **bounds)
    assert result.item() == pytest.approx(loss)
    assert gradient(result, logprob) == pytest.approx([slope])
    assert losses.is_clipped(log_ratio, signed, **bounds).tolist() == [slope == 0.0]


def test_gspo_looks_at_the_geometric_mean_of_each_actions_ratios() -> None:
    # Two actions, interleaved: ratios 1.1 and 1.3 make sqrt(1.43), a ratio of 0.7 alone stays.
    logprob = values(math.log(1.1), math.log(0.7), math.log(1.3))
    actions = torch.tensor([4, 2, 4])
    ratio = losses.action_ratio(losses.log_ratio(logprob, torch.zeros(3, dtype=torch.float64)), actions)
    mean = math.sqrt(1.43)
    assert ratio.exp().tolist() == pytest.approx([mean, 0.7, mean])
    advantage = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64)
    loss = losses.ppo_clip(ratio, advantage, clip_low=0.4, clip_high=0.3)
    assert loss.tolist() == pytest.approx([-2 * mean, 0.7, -2 * mean])
    # Each of the action's two tokens moves the mean by a half, and both of its losses: 2 x 1/2 x -2 x mean.
    assert gradient(loss, logprob) == pytest.approx([-2 * mean, 0.7, -2 * mean])


def test_gspo_clips_whole_actions_by_their_mean() -> None:
    logprob = values(math.log(2.0), math.log(0.9))  # the mean, sqrt(1.8) = 1.34, is above 1.3 although 0.9 is not
    ratio = losses.action_ratio(logprob, torch.zeros(2, dtype=torch.int64))
    loss = losses.ppo_clip(ratio, torch.ones(2, dtype=torch.float64), clip_low=0.3, clip_high=0.3)
    assert loss.tolist() == pytest.approx([-1.3, -1.3])
    assert gradient(loss, logprob) == [0.0, 0.0]


def test_gspo_token_gives_each_token_its_own_advantage_times_the_actions_ratio() -> None:
    logprob = values(math.log(1.1), math.log(1.3))
    actions, mean = torch.zeros(2, dtype=torch.int64), math.sqrt(1.43)
    for advantages in ((2.0, 2.0), (2.0, -1.0)):
        ratio = losses.token_ratio(logprob, actions)
        signed = torch.tensor(advantages, dtype=torch.float64)
        loss = losses.ppo_clip(ratio, signed, clip_low=0.3, clip_high=0.3)
        assert loss.tolist() == pytest.approx([-mean * advantage for advantage in advantages])
        assert gradient(loss, logprob) == pytest.approx([-mean * advantage for advantage in advantages])


@pytest.mark.parametrize(
    ("ratio", "weight"),
    [(7.0, 5.0), (3.0, 3.0), (0.5, 0.8)],  # held at 1 + 4, free, held at 1 - 0.2
)
def test_cispo_clips_the_weight_and_keeps_every_gradient(ratio: float, weight: float) -> None:
    logprob = values(-2.0, -2.0)
    old = torch.full((2,), -2.0 - math.log(ratio), dtype=torch.float64)
    advantage = torch.tensor([1.5, -1.0], dtype=torch.float64)
    loss = losses.cispo(logprob, losses.log_ratio(logprob, old), advantage, clip_low=0.2, clip_high=4.0)
    assert loss.tolist() == pytest.approx([weight * 1.5 * 2, -weight * 2])
    assert gradient(loss, logprob) == pytest.approx([-weight * 1.5, weight])


def test_sapo_gates_by_a_sigmoid_whose_temperature_depends_on_the_sign() -> None:
    logprob = values(math.log(2.0), math.log(2.0))
    advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = losses.sapo(logprob, advantage, tau_positive=1.0, tau_negative=2.0)
    # sigmoid(1) = 0.7310586, sigmoid(2) = 0.8807971; slope of the gate times r = 2: 8 sigmoid (1 - sigmoid)
    assert loss.tolist() == pytest.approx([-4 * 0.7310586, 2 * 0.8807971], rel=1e-6)
    assert gradient(loss, logprob) == pytest.approx([-8 * 0.1966119, 8 * 0.1049936], rel=1e-6)


@pytest.mark.parametrize("tau", [0.5, 1.05, 3.0])
def test_at_a_ratio_of_one_sapo_has_the_gradient_of_reinforce(tau: float) -> None:
    logprob, advantage = values(-1.0, -2.0), torch.tensor([2.0, -3.0], dtype=torch.float64)
    ratio = losses.log_ratio(logprob, logprob.detach())
    loss = losses.sapo(ratio, advantage, tau_positive=tau, tau_negative=tau)
    assert gradient(loss, logprob) == pytest.approx([-2.0, 3.0])


def test_reinforce_is_minus_the_advantage_times_the_log_probability() -> None:
    logprob = values(-1.0, -2.0)
    loss = losses.reinforce(logprob, torch.tensor([2.0, -3.0], dtype=torch.float64))
    assert loss.tolist() == [2.0, -6.0]
    assert gradient(loss, logprob) == [-2.0, 3.0]


def test_k1_and_k2_have_their_values_and_one_gradient() -> None:
    logprob = values(-1.0, -1.0, -2.0)
    other = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    difference = [0.0, 0.5, -1.0]
    assert losses.k1(logprob, other).tolist() == difference
    assert losses.k2(logprob, other).tolist() == [0.0, 0.125, 0.5]
    assert gradient(losses.k1(logprob, other), logprob) == difference
    assert gradient(losses.k2(logprob, other), logprob) == difference


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Of two rows of log-probabilities."""
    return (p.exp() * (p - q)).sum()


@pytest.mark.parametrize(("form", "reverse"), [("k1", True), ("k2", True), ("k3", False)])
def test_the_mean_gradient_of_a_kl_term_is_that_of_the_divergence_it_says(form: KlForm, *, reverse: bool) -> None:
    """By enumeration of all tokens; the samples' probabilities themselves have no gradient, as in training."""
    logits = values(0.3, -0.5, 1.1)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    p = logits.log_softmax(-1)
    expected = gradient(kl(p, q) if reverse else kl(q, p), logits)
    p = logits.log_softmax(-1)
    found = gradient((p.detach().exp() * losses.kl_term(form, p, q)).sum(), logits)
    assert found == pytest.approx(expected)
    assert max(map(abs, found)) > 0.05


LOG_WEIGHT = torch.tensor([0.5, 3.0, 2.0, 3.0], dtype=torch.float64).log()
PAIRS = torch.tensor([0, 0, 7, 7])
"""Two actions, the products of whose weights are 1.5 and 6."""


@pytest.mark.parametrize(
    ("corrections", "factor"),
    [
        ((), [1, 1, 1, 1]),
        ((TruncatedIS("token", 2.0),), [0.5, 2, 2, 2]),
        ((TruncatedIS("sequence", 2.0),), [1.5, 1.5, 2, 2]),
        ((TruncatedIS("sequence", 9.0),), [1.5, 1.5, 6, 6]),
        ((MaskedIS(0.6, 2.5),), [0, 0, 2, 0]),
        ((GeometricRejection(0.5, 1.5),), [1, 1, 0, 0]),  # sqrt(1.5) = 1.22, sqrt(6) = 2.45
        ((TruncatedIS("token", 2.0), GeometricRejection(0.5, 1.5)), [0.5, 2, 0, 0]),
    ],
)
def test_corrections_give_the_factors_of_their_formulas(
    corrections: tuple[Correction, ...], factor: list[float]
) -> None:
    assert losses.correction_factor(corrections, LOG_WEIGHT, PAIRS).tolist() == pytest.approx(factor)


def test_weights_between_unrelated_policies_stay_finite() -> None:
    far = torch.tensor([-1e9, 1e9, 1e9], dtype=torch.float64)
    together = torch.zeros(3, dtype=torch.int64)
    for correction in (TruncatedIS("sequence", 1e30), MaskedIS(0.0, 1e30), GeometricRejection(0.0, 1e30)):
        assert losses.correction_factor((correction,), far, together).isfinite().all()


@pytest.mark.parametrize("settings", [make() for make in LOSSES.values()], ids=list(LOSSES))
def test_at_a_ratio_of_one_every_loss_has_the_gradient_of_reinforce(settings: PolicyLoss) -> None:
    logprob, advantage = values(-1.0, -2.0, -0.1), torch.tensor([2.0, 2.0, -3.0], dtype=torch.float64)
    ratio, actions = losses.log_ratio(logprob, logprob.detach()), torch.tensor([0, 0, 1])
    made = losses.policy_losses(settings, logprob, ratio, advantage, actions)
    assert gradient(made.losses, logprob) == pytest.approx([-2.0, -2.0, 3.0])
