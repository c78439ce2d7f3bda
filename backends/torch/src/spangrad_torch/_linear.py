"""Linear layers through oneDNN, and with their weights kept in bf16 beside the real ones where nothing is differentiated.

On the CPU torch multiplies fp32 matrices with MKL, which on some processors (AMD's among them) leaves half of the speed
unused; oneDNN, which torch also contains, does not. The results are fp32 either way. Which is faster is for `_precision`
to measure. Under autocast torch casts each weight to bf16 at every call, which costs more than a small multiplication itself;
here the cast weight is kept until the weight changes.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_NAME: Final = "_linear_pointwise"


def has_onednn() -> bool:
    """Whether this build of torch offers the operator used here."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, _NAME)


def use_onednn(model: nn.Module) -> None:
    """Makes every plain linear layer of a model multiply through oneDNN; parameters and their names stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., in) times weight (out, in) transposed, by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001 - torch has no public name for it
    return product


class _Multiplication(torch.autograd.Function):
    """The differentiable product; its two backward products go through oneDNN as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]  # torch types it as *args
        """(N, in) and (out, in) to (N, out)."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]  # as above
        """(N, out) to the gradients of x, weight and bias, as far as they are needed."""
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _multiply(gradient, weight.t(), None) if wants_x else None,
            _multiply(gradient.t(), x.t(), None) if wants_weight else None,
            gradient.sum(0) if wants_bias and ctx.has_bias else None,
        )


class OneDnnLinear(nn.Linear):
    """A linear layer that an `nn.Linear` is turned into by `use_onednn`."""

    _lowered: tuple[tuple[int, int, torch.dtype], Tensor] | None = None
    """What the weight was when it was cast (address, change count, target type), and the cast weight."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if not x.is_cpu or x.numel() == 0:
            return super().forward(x)
        if torch.is_autocast_enabled("cpu"):
            if torch.is_grad_enabled():
                return super().forward(x)
            return self._forward_lowered(x, torch.get_autocast_dtype("cpu"))
        if x.dtype != torch.float32 or self.weight.dtype != torch.float32:
            return super().forward(x)
        if not torch.is_grad_enabled():
            return _multiply(x, self.weight, self.bias)
        flat = x.reshape(-1, x.shape[-1])
        product: Tensor = _Multiplication.apply(flat, self.weight, self.bias)  # type: ignore[no-untyped-call]  # torch's is
        return product.view(*x.shape[:-1], -1)

    def _forward_lowered(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The product as autocast computes it, with the cast weight kept for the next call."""
        weight = self.weight
        state = (weight.data_ptr(), weight._version, dtype)  # noqa: SLF001 - the only count of in-place changes
        lowered = self._lowered
        if lowered is None or lowered[0] != state:
            lowered = (state, weight.detach().to(dtype))
            self._lowered = lowered
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x.to(dtype), lowered[1], bias)

    def __getstate__(self) -> dict[str, Any]:
        """A copy casts its own weights."""
        return {name: value for name, value in self.__dict__.items() if name != "_lowered"}
