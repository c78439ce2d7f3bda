"""Linear layers through oneDNN give what torch's own give."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from spangrad_torch._linear import OneDnnLinear, release_prepared, use_onednn
from spangrad_torch._model import load_model


def pair(*, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """The same layer as torch computes it and through oneDNN."""
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    ours = copy.deepcopy(plain)
    use_onednn(ours)
    assert type(ours) is OneDnnLinear
    return plain, ours


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 3, 24), (0, 24)])
def test_output_and_gradients_equal_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    plain, ours = pair(bias=bias)
    x = torch.randn(shape)
    results = []
    for layer in (plain, ours):
        given = x.clone().requires_grad_()
        output = layer(given)
        output.sin().sum().backward()
        results.append([output, given.grad, *(p.grad for p in layer.parameters())])
    with torch.no_grad():
        results[0].append(plain(x))
        results[1].append(ours(x))

    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_frozen_weight_gets_no_gradient_and_its_input_does() -> None:
    _, ours = pair(bias=True)
    ours.requires_grad_(requires_grad=False)
    x = torch.randn(3, 24, requires_grad=True)

    ours(x).sum().backward()

    assert ours.weight.grad is None
    torch.testing.assert_close(x.grad, ours.weight.sum(0).expand(3, 24))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_weight_changed_in_place_or_replaced_is_used_at_once(dtype: torch.dtype | None) -> None:
    _, ours = pair(bias=False)
    x = torch.randn(3, 24)

    def output() -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
            product: torch.Tensor = ours(x)
            return product.float()

    first = output()
    with torch.no_grad():
        ours.weight.mul_(2)
    torch.testing.assert_close(output(), 2 * first)
    ours.weight.data = ours.weight.data * 2
    torch.testing.assert_close(output(), 4 * first)


def test_under_autocast_outputs_are_those_of_torch_with_and_without_gradients() -> None:
    plain, ours = pair(bias=True)
    x = torch.randn(6, 24)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(x)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), expected, atol=1e-2, rtol=1e-2)
        assert ours(x).dtype == torch.bfloat16
        ours(x).float().sum().backward()
    assert ours.weight.grad is not None
    assert bool(ours.weight.grad.abs().sum() > 0)


def test_a_prepared_weight_is_released_and_not_copied() -> None:
    _, ours = pair(bias=False)
    assert isinstance(ours, OneDnnLinear)
    with torch.no_grad():
        ours(torch.randn(1, 24))
        assert ours.prepared is not None
        assert copy.deepcopy(ours).prepared is None
        release_prepared(ours)
    assert ours.prepared is None


def test_a_model_keeps_its_parameter_names_and_its_output(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = model(ids).logits
    names = [name for name, _ in model.named_parameters()]

    use_onednn(model)

    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
    assert [name for name, _ in model.named_parameters()] == names
    assert dict(model.named_parameters(remove_duplicate=False))["lm_head.weight"] is model.get_input_embeddings().weight
