"""Token weights, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import ConfigError
from spangrad.lightningrl import Weighting
from spangrad.transitions import TransitionBatch

MakeBatch = Callable[..., TransitionBatch]

# 2 rollouts, 3 calls, 2 + 4 + 10 tokens
ROLLOUTS = [("a", 1.0, [2, 4]), ("a", 0.0, [10])]


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (Weighting(), [1 / 12, 1 / 12, 1 / 20]),
        (Weighting("rollout"), [1 / 12, 1 / 12, 1 / 20]),
        (Weighting("call"), [1 / 6, 1 / 12, 1 / 30]),
        (Weighting("token"), [1 / 16, 1 / 16, 1 / 16]),
        (Weighting("constant", length=50), [1 / 100, 1 / 100, 1 / 100]),
    ],
    ids=["default", "rollout", "call", "token", "constant"],
)
def test_each_weighting_gives_tokens_their_documented_weight(
    make_transition_batch: MakeBatch, weighting: Weighting, expected: list[float]
) -> None:
    assert weighting.token_weights(make_transition_batch(ROLLOUTS)) == pytest.approx(expected)


@given(
    rollouts=st.lists(
        st.tuples(st.just("a"), st.just(0.0), st.lists(st.integers(1, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    )
)
def test_the_weights_of_all_tokens_sum_to_one_and_weigh_what_the_name_says(
    make_transition_batch: MakeBatch, rollouts: list[tuple[str, float, list[int]]]
) -> None:
    batch = make_transition_batch(rollouts)
    for name in ("rollout", "call", "token"):
        weights = Weighting(name).token_weights(batch)
        assert (weights * batch.action_lengths).sum() == pytest.approx(1.0)
    of_calls = Weighting("rollout").token_weights(batch) * batch.action_lengths
    of_rollouts = np.bincount(batch.rollout_index, weights=of_calls)
    assert of_rollouts == pytest.approx(np.full(len(rollouts), 1 / len(rollouts)))


def test_an_empty_batch_has_no_weights() -> None:
    for weighting in (Weighting("rollout"), Weighting("call"), Weighting("token"), Weighting("constant", length=5)):
        assert weighting.token_weights(TransitionBatch(())).shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "tokens"}, r"Unknown weighting 'tokens' \(known: rollout, call, token, constant\)"),
        ({"name": "rollout", "length": 5}, "would ignore length = 5"),
        ({"name": "constant"}, "has length = None"),
        ({"name": "constant", "length": 0}, "has length = 0"),
        ({"name": "constant", "length": 2.5}, "has length = 2.5"),
        ({"name": "constant", "length": True}, "has length = True"),
    ],
)
def test_a_weighting_that_is_unknown_or_would_ignore_something_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Weighting(**options)
