"""The losses give the numbers of their formulas, and the gradients those formulas have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spangrad_torch import _loss


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (result,) = torch.autograd.grad(loss.sum(), of)
    return result.tolist()


def test_on_policy_the_clipped_loss_is_minus_the_advantage_and_its_gradient_that_of_reinforce() -> None:
    logprob = values(-1.0, -2.0, -0.5)
    advantage = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    ratio = _loss.log_ratio(logprob, logprob.detach())
    loss = _loss.ppo_clip(ratio, advantage, clip_low=0.2, clip_high=0.2)
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
    log_ratio = _loss.log_ratio(logprob, torch.tensor([-3.0], dtype=torch.float64))
    signed = torch.tensor([advantage], dtype=torch.float64)
    result = _loss.ppo_clip(log_ratio, signed, clip_low=0.1, clip_high=0.3)
    assert result.item() == pytest.approx(loss)
    assert gradient(result, logprob) == pytest.approx([slope])
    clipped = _loss.is_clipped(log_ratio, signed, clip_low=0.1, clip_high=0.3)
    assert clipped.tolist() == [slope == 0.0]


def test_owners_of_one_shared_token_are_clipped_by_their_own_advantages() -> None:
    node = values(math.log(1.5))
    logprob = node[torch.tensor([0, 0])]
    advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
    ratio = _loss.log_ratio(logprob, torch.zeros(2, dtype=torch.float64))
    loss = _loss.ppo_clip(ratio, advantage, clip_low=0.2, clip_high=0.2)
    assert loss.tolist() == pytest.approx([-1.2, 1.5])
    assert gradient(loss, node) == pytest.approx([1.5])


def test_a_ratio_between_unrelated_policies_stays_finite() -> None:
    ratio = _loss.log_ratio(values(0.0, -1e9), torch.tensor([-1e9, 0.0], dtype=torch.float64))
    assert ratio.tolist() == [20.0, -20.0]


def test_k3_is_the_estimator_of_its_formula_and_zero_between_equal_policies() -> None:
    logprob = values(-1.0, -1.0, -2.0)
    other = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    expected = [0.0, math.exp(-0.5) + 0.5 - 1.0, math.exp(1.0) - 1.0 - 1.0]
    assert _loss.k3(logprob, other).tolist() == pytest.approx(expected)
    assert gradient(_loss.k3(logprob, other), logprob) == pytest.approx([0.0, 1 - math.exp(-0.5), 1 - math.exp(1.0)])


def test_the_mean_of_k3_over_all_tokens_is_the_kl_divergence() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expectation = (p * _loss.k3(p.log(), q.log())).sum()
    assert expectation.item() == pytest.approx((p * (p / q).log()).sum().item())


def test_negative_log_likelihood_is_what_its_name_says() -> None:
    assert _loss.negative_log_likelihood(values(-0.25)).tolist() == [0.25]
