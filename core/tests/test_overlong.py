"""DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) over the tokens of a whole rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spangrad.rollouts import Overlong
from spangrad.rollouts._overlong import sampled_tokens
from spangrad.training._overlong_config import OverlongTable
from spangrad.transitions import Choice


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [
        # The paper's numbers: L_max = 20480 (16384 expected, 4096 more as the cache), from its section 4.1.
        (0, 0.0),
        (16_384, 0.0),  # |y| <= L_max - L_cache
        (17_408, -0.25),  # ((L_max - L_cache) - |y|) / L_cache = -1024 / 4096
        (18_432, -0.5),
        (20_480, -1.0),  # |y| = L_max
        (20_481, -1.0),
        (1_000_000, -1.0),
    ],
)
def test_the_papers_formula_with_the_papers_lengths(tokens: int, reward: float) -> None:
    assert Overlong(20_480, 4_096).reward(tokens) == reward


def test_a_penalty_scales_it_and_a_cache_as_long_as_the_limit_begins_at_the_first_token() -> None:
    assert Overlong(100, 50, 0.4).reward(75) == pytest.approx(-0.2)  # halfway of 0.4
    assert Overlong(10, 10).reward(1) == pytest.approx(-0.1)


lengths = st.integers(1, 100_000).flatmap(lambda longest: st.tuples(st.just(longest), st.integers(1, longest)))


@given(lengths, st.floats(0.01, 100), st.integers(0, 200_000))
def test_it_falls_evenly_and_stays_within_its_bounds(limits: tuple[int, int], penalty: float, tokens: int) -> None:
    longest, cache = limits
    overlong = Overlong(longest, cache, penalty)

    here, after = overlong.reward(tokens), overlong.reward(tokens + 1)
    assert -penalty <= after <= here <= 0
    assert (here == 0) == (tokens <= longest - cache)
    assert (here == -penalty) == (tokens >= longest)
    if longest - cache <= tokens < longest:
        assert here - after == pytest.approx(penalty / cache, rel=1e-6)


def test_the_length_is_that_of_all_answers_of_the_policy(make_call: Callable[..., Any]) -> None:
    def choice(index: int, count: int) -> Choice:
        return Choice(index, (7,) * count, (-0.5,) * count, "stop", {"role": "assistant"})

    several = make_call(2, choices=(choice(0, 3), choice(1, 4)))
    frozen = make_call(3, policy=None, choices=(choice(0, 100),))
    unknown = make_call(4, choices=(Choice(0, None, None, "stop", {"role": "assistant"}),))

    assert sampled_tokens([make_call(1), several, frozen, unknown]) == 2 + 3 + 4
    assert sampled_tokens([]) == 0


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"max_tokens": 10, "cache": 11}, "cache is 11, more than max_tokens = 10"),
        ({"max_tokens": 10, "cache": 0}, "greater than or equal to 1"),
        ({"max_tokens": 10, "cache": 5, "penalty": 0.0}, "greater than 0"),
        ({"max_tokens": 10, "cache": 5, "penalty": float("inf")}, "finite"),
        ({"max_tokens": 10}, "Field required"),
    ],
)
def test_settings_that_cannot_be_are_refused(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        OverlongTable.model_validate(table)
