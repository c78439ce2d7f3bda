"""Linear layers through oneDNN, their weights laid out for it where nothing is differentiated.

On the CPU torch multiplies fp32 matrices with MKL, which on some processors (AMD's among them) leaves half of the speed
unused; oneDNN, which torch also contains, does not. The results are fp32 either way. Which is faster is for `_precision`
to measure. For small numbers of rows oneDNN spends much of its time bringing the weight into its own layout, and under autocast
torch casts each weight at every call; here the prepared weight is kept until the weight changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

_NAMES: Final = ("_linear_pointwise", "_reorder_linear_weight")
_PREPARED: Final = "_spangrad_prepared"
"""Attribute of a weight that holds its prepared copy; torch does not copy it with the weight."""
_ROWS: Final = 32
"""Number of rows that prepared weights are laid out for; other numbers work as well."""


def has_onednn() -> bool:
    """Whether this build of torch offers the operator used here."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    return available and all(hasattr(torch.ops.mkldnn, name) for name in _NAMES)


def use_onednn(model: nn.Module) -> None:
    """Makes every plain linear layer of a model multiply through oneDNN; parameters and their names stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


def release_prepared(model: nn.Module) -> None:
    """Gives the memory of all prepared weights back; to be called when the weights change."""
    for module in model.modules():
        if isinstance(module, OneDnnLinear):
            module.release()


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., in) times weight (out, in) transposed, by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001 - torch has no public name for it
    return product


class _Multiplication(torch.autograd.Function):
    """The differentiable product; its two backward products go through oneDNN as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, in) and (out, in) to (N, out)."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(N, out) to the gradients of x, weight and bias, as far as they are needed."""
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _multiply(gradient, weight.t(), None) if wants_x else None,
            _multiply(gradient.t(), x.t(), None) if wants_weight else None,
            gradient.sum(0) if wants_bias and ctx.has_bias else None,
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A copy of a weight in oneDNN's layout."""

    state: tuple[int, int, torch.dtype]
    """What the weight was then: address, change count, type of the copy."""
    copy: Tensor


class OneDnnLinear(nn.Linear):
    """A linear layer that an `nn.Linear` is turned into by `use_onednn`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if not x.is_cpu or x.numel() == 0 or self.weight.dtype != torch.float32:
            return super().forward(x)
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else torch.float32
        if not torch.is_grad_enabled():
            with torch.autocast("cpu", enabled=False):
                bias = cast("Tensor | None", self.bias)  # torch types it as always there
                bias = None if bias is None else bias.to(dtype)
                return _multiply(x.to(dtype), self._prepared_weight(dtype), bias)
        if autocast or x.dtype != torch.float32:
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1])
        product: Tensor = _Multiplication.apply(flat, self.weight, self.bias)  # type: ignore[no-untyped-call]  # torch's is
        return product.view(*x.shape[:-1], -1)

    @property
    def prepared(self) -> _Prepared | None:
        """The weight's copy, if it has one. It hangs on the weight: layers that share a weight share it."""
        found: _Prepared | None = getattr(self.weight, _PREPARED, None)
        return found

    def release(self) -> None:
        """Gives the prepared weight's memory back."""
        if self.prepared is not None:
            setattr(self.weight, _PREPARED, None)

    def _prepared_weight(self, dtype: torch.dtype) -> Tensor:
        """The weight in oneDNN's layout, as it is now."""
        weight = self.weight
        state = (weight.data_ptr(), weight._version, dtype)  # noqa: SLF001 - the only count of in-place changes
        prepared = self.prepared
        if prepared is None or prepared.state != state:
            copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), _ROWS)  # noqa: SLF001 - as above
            prepared = _Prepared(state, copy)
            setattr(weight, _PREPARED, prepared)
        return prepared.copy
