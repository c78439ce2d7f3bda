"""From logits to tokens: expected numbers are worked out by hand or by a plain softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spangrad.backend import SamplingParams
from spangrad.errors import BackendError
from spangrad_torch._drawing import DrawnToken, draw

PROBABILITIES = (0.1, 0.4, 0.0, 0.3, 0.2)


def draw_one(uniform: float, params: SamplingParams, *, top: int = 0, scale: float = 1.0) -> DrawnToken:
    """Draws from PROBABILITIES; `scale` multiplies the logits."""
    logits = torch.tensor(PROBABILITIES).log().mul(scale)[None] + 3.0
    return draw(logits, [params], [uniform], [top])[0]


@pytest.mark.parametrize(
    ("uniform", "token_id"),
    [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.4999, 1), (0.5001, 3), (0.7999, 3), (0.8001, 4), (1 - 2**-53, 4)],
)
def test_the_token_is_where_the_cumulative_probability_passes_the_number(uniform: float, token_id: int) -> None:
    drawn = draw_one(uniform, SamplingParams())

    assert drawn.token_id == token_id
    assert drawn.logprob == pytest.approx(math.log(PROBABILITIES[token_id]), abs=1e-6)


def test_temperature_zero_takes_the_likeliest_with_its_plain_logprob() -> None:
    drawn = draw_one(0.99, SamplingParams(temperature=0, top_k=1, top_p=0.1))

    assert drawn.token_id == 1
    assert drawn.logprob == pytest.approx(math.log(0.4), abs=1e-6)


def test_temperature_divides_the_logits() -> None:
    drawn = draw_one(0.05, SamplingParams(temperature=0.5))

    assert drawn.token_id == 1  # squares 0.01, 0.16, 0, 0.09, 0.04 of 0.30: the first is 0.033
    assert drawn.logprob == pytest.approx(math.log(0.16 / 0.30), abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-30, 1e-3])
def test_a_temperature_near_zero_is_the_likeliest_and_overflows_nothing(temperature: float) -> None:
    drawn = draw_one(0.999, SamplingParams(temperature=temperature))

    assert drawn.token_id == 1
    assert drawn.logprob == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), {1: 0.4, 3: 0.3}),
        (SamplingParams(top_k=99), {0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2}),
        (SamplingParams(top_p=0.39), {1: 0.4}),
        (SamplingParams(top_p=0.41), {1: 0.4, 3: 0.3}),
        (SamplingParams(top_p=0.95), {0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2}),
        (SamplingParams(top_p=1e-9), {1: 0.4}),
        (SamplingParams(top_k=3, top_p=0.5), {1: 0.4, 3: 0.3}),  # of 0.9: 0.44 and 0.33
        (SamplingParams(top_k=3, top_p=0.4), {1: 0.4}),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest_and_renormalise(params: SamplingParams, kept: dict[int, float]) -> None:
    total = sum(kept.values())
    seen = {draw_one(u, params).token_id: draw_one(u, params).logprob for u in np.linspace(0, 0.9999, 101)}

    assert seen == {i: pytest.approx(math.log(p / total), abs=1e-6) for i, p in kept.items()}


def test_alternatives_are_of_the_distribution_drawn_from_and_leave_excluded_ids_out() -> None:
    drawn = draw_one(0.0, SamplingParams(top_k=2), top=4)

    assert [token_id for token_id, _ in drawn.alternatives] == [1, 3]
    assert [logprob for _, logprob in drawn.alternatives] == pytest.approx([math.log(4 / 7), math.log(3 / 7)], abs=1e-6)


def test_rows_with_different_settings_do_not_touch_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 1000, generator=generator) * 3
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(top_k=5),
    ]
    uniforms = [0.3, 0.3, 0.6, 0.9]

    together = draw(logits.clone(), params, uniforms, [0, 2, 0, 3])
    alone = [
        draw(logits[i : i + 1].clone(), [params[i]], [uniforms[i]], [[0, 2, 0, 3][i]])[0] for i in range(len(params))
    ]

    assert together == alone


def test_a_whole_vocabulary_is_drawn_at_its_frequencies() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 300, generator=generator)
    expected = torch.softmax(logits, -1)[0].double().numpy()
    grid = (np.arange(20_000) + 0.5) / 20_000

    drawn = draw(logits.repeat(len(grid), 1), [SamplingParams()] * len(grid), grid.tolist(), [0] * len(grid))

    frequency = np.bincount([token.token_id for token in drawn], minlength=300) / len(grid)
    assert np.abs(frequency - expected).max() < 1.1 / len(grid) + 1e-6


def test_a_flat_distribution_over_many_ids_still_has_an_exact_nucleus() -> None:
    params = SamplingParams(top_p=0.4998)
    drawn = draw(torch.zeros(1, 2000), [params], [0.999999], [2000])[0]

    assert len(drawn.alternatives) == 1000
    assert drawn.logprob == pytest.approx(-math.log(1000), abs=1e-4)


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(BackendError, match="not finite"):
        draw(torch.full((1, 8), float("nan")), [SamplingParams()], [0.5], [0])
