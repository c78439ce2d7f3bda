"""Attention by runs gives what the dense mask gives, values and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from backends.torch.tests.trees import Tokens, batches, one_pack, wide_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from spangrad_torch._forward import predict
from spangrad_torch._model import load_model
from spangrad_torch._tree_attention import attend_by_runs, cut_into_runs, run_attention, worthwhile_runs


def inputs(heads: int, kv_heads: int, nodes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((heads, nodes, 8), (kv_heads, nodes, 8), (kv_heads, nodes, 8))
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


@settings(deadline=None)
@given(batches, st.integers(1, 7), st.sampled_from([(4, 4), (4, 2), (6, 2)]))
def test_runs_of_any_length_give_the_values_and_gradients_of_the_dense_mask(
    batch: list[Tokens], run: int, heads: tuple[int, int]
) -> None:
    pack = one_pack(batch)
    query, key, value = inputs(*heads, len(pack))
    groups = heads[0] // heads[1]
    dense = functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(groups, 0),
        value.repeat_interleave(groups, 0),
        attn_mask=torch.from_numpy(pack.attention_mask()),
        scale=0.3,
    ).transpose(0, 1)
    by_runs = run_attention(query, key, value, cut_into_runs(pack, groups=groups, run=run), 0.3)
    torch.testing.assert_close(by_runs, dense)
    slope = torch.randn(dense.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.autograd.grad(dense, (query, key, value), slope)
    torch.testing.assert_close(torch.autograd.grad(by_runs, (query, key, value), slope), expected)


def test_a_model_that_attends_by_runs_predicts_what_it_did_before(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    pack = wide_tree()
    temperatures = np.ones(len(pack.targets))
    results = []
    for prepare in (lambda _: None, attend_by_runs):
        prepare(model)
        logprobs = predict(model, pack, temperatures).logprobs
        logprobs.sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        results.append((logprobs.detach(), [weight.grad for weight in model.parameters()]))
        model.zero_grad()
    assert worthwhile_runs(model, pack) is not None
    (dense, dense_gradient), (by_runs, gradient) = results
    torch.testing.assert_close(by_runs, dense, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, dense_gradient, rtol=1e-4, atol=1e-4)


def test_in_bf16_attention_by_runs_is_no_less_exact_than_the_dense_mask(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    pack = wide_tree()
    with torch.no_grad():
        exact = predict(model, pack, np.ones(len(pack.targets))).logprobs
        errors = []
        for prepare in (lambda _: None, attend_by_runs):
            prepare(model)
            with torch.autocast("cpu", torch.bfloat16):
                errors.append((predict(model, pack, np.ones(len(pack.targets))).logprobs - exact).abs().mean().item())
    assert 0 < errors[1] < 1.2 * errors[0]


def test_plain_calls_of_a_prepared_model_are_untouched(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        attend_by_runs(model)
        assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("prepared", [True, False])
def test_runs_are_left_where_they_would_not_pay(tiny_model_folder: Path, *, prepared: bool) -> None:
    model = load_model(tiny_model_folder).model
    if prepared:
        attend_by_runs(model)
    two_long_branches = one_pack([Tokens(tuple(range(3, 60)), (n, *range(70, 90))) for n in (60, 61)])
    assert worthwhile_runs(model, two_long_branches) is None
    assert (worthwhile_runs(model, wide_tree()) is not None) == prepared
