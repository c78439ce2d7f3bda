"""Rows, and how they are dealt out to workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backends.verl.tests.transitions import batch, some, transition
from hypothesis import given, settings
from hypothesis import strategies as st

from spangrad.backend import KlTerm, LossSettings, TruncatedIS
from spangrad.transitions import TransitionBatch
from spangrad_verl._rows import have_gradient, plain_rows, selected, update_rows
from spangrad_verl._tensors import Shares, action_values, as_tensors

pytestmark = pytest.mark.verl


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    lengths=st.lists(st.integers(2, 50), min_size=1, max_size=20),
    workers=st.integers(1, 4),
    multiple=st.integers(1, 3),
)
def test_every_row_is_dealt_out_once_and_shares_are_equal(lengths: list[int], workers: int, multiple: int) -> None:
    shares = Shares.of(lengths, workers=workers, multiple=multiple)

    used = [row for row, filling in zip(shares.order, shares.filling, strict=True) if not filling]
    assert sorted(used) == list(range(len(lengths)))
    assert len(shares.order) % (workers * multiple) == 0
    assert sum(shares.filling) < workers * multiple


def test_a_row_that_fills_up_weighs_nothing() -> None:
    rows = update_rows(batch(some(3)))
    data = as_tensors(rows, Shares.of([9, 9, 9], workers=2))

    masks = [bool(mask.any()) for mask in data["response_mask"].unbind()]
    assert sum(masks) == 3
    assert len(masks) == 4
    assert data["loss_mask"].values().sum() == rows.tokens


def test_rows_hold_prompt_and_action_side_by_side() -> None:
    one = TransitionBatch((transition(0, [1, 5, 6], [7, 8], [-0.5, -0.25], temperature=0.0),))
    rows = update_rows(batch(one, advantages=np.array([2.0]), token_weights=np.array([0.5]), proximal="recorded"))

    data = as_tensors(rows, Shares.of([5], workers=1))

    def only(name: str) -> list[float]:
        return list(data[name].unbind()[0].tolist())

    assert only("input_ids") == [1, 5, 6, 7, 8]
    assert only("position_ids") == [0, 1, 2, 3, 4]
    assert only("responses") == [7, 8]
    assert only("advantages") == [2.0, 2.0]
    assert only("token_weights") == [0.5, 0.5]
    assert only("old_log_probs") == [-0.5, -0.25]
    assert data["temperature"] == 1.0  # of a greedy answer; one number, since all rows have the same


def test_rows_of_several_temperatures_have_one_each() -> None:
    data = as_tensors(plain_rows(some(3)), Shares.of([9, 9, 9], workers=1))

    assert data["temperature"].tolist() == pytest.approx([1.0, 0.7, 1.0])


def test_values_come_back_in_the_order_of_the_transitions() -> None:
    rows = plain_rows(some(5))
    lengths = [len(t.prompt_ids + t.action_ids) for t in rows.transitions]
    shares = Shares.of(lengths, workers=2)
    values = torch.nested.as_nested_tensor(
        [torch.arange(lengths[row]) + 100.0 * row for row in shares.order], layout=torch.jagged
    )

    found = action_values(values, shares, rows)

    # The value of a token stands one position before it.
    wanted = [
        100.0 * row + np.arange(len(t.prompt_ids) - 1, length - 1)
        for row, (t, length) in enumerate(zip(rows.transitions, lengths, strict=True))
    ]
    assert [row.tolist() for row in found] == [row.tolist() for row in wanted]


def test_only_rows_that_can_move_the_weights_are_computed() -> None:
    rows = some(3)
    update = batch(rows, advantages=np.array([0.0, 1.0, 1.0]), token_weights=np.array([1.0, 0.0, 1.0]))

    assert have_gradient(update, imitate=False).tolist() == [False, False, True]
    assert have_gradient(update, imitate=True).tolist() == [True, False, True]
    kept = selected(update, have_gradient(update, imitate=False))
    assert [t.call_id for t in kept.transitions.transitions] == ["c2"]
    with_kl = batch(rows, advantages=np.zeros(3), token_weights=np.ones(3), loss=LossSettings(kl=KlTerm("k3", 0.1)))
    assert have_gradient(with_kl, imitate=False).all()


def test_corrections_touch_the_policy_loss_alone() -> None:
    rows = some(2)
    loss = LossSettings(corrections=(TruncatedIS(),))
    present = [np.asarray(t.logprobs) + np.log(1.5) for t in rows.transitions]

    made = update_rows(batch(rows, loss=loss, token_weights=np.array([0.2, 0.4])), present=present)

    for weight, corrected, base in zip(made.token_weights, made.policy_weights, (0.2, 0.4), strict=True):
        np.testing.assert_allclose(weight, base)
        np.testing.assert_allclose(corrected, base * 1.5)


def test_corrections_need_something_to_compare_with() -> None:
    with pytest.raises(ValueError, match="proximal"):
        update_rows(batch(some(2), loss=LossSettings(corrections=(TruncatedIS(),))))
