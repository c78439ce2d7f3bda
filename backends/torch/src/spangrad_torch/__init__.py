"""The embedded torch backend of spangrad: samples and trains a transformers model in one process.

Names are imported when first used: the plug-in module lies in this package and must load without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spangrad_torch._backend import TorchBackend
    from spangrad_torch._model import LoadedModel, load_model
    from spangrad_torch._options import LoraOptions, TorchOptions
    from spangrad_torch._precision import Compute, choose_compute

__all__ = ["Compute", "LoadedModel", "LoraOptions", "TorchBackend", "TorchOptions", "choose_compute", "load_model"]

_HOMES = {
    "Compute": "_precision",
    "LoadedModel": "_model",
    "LoraOptions": "_options",
    "TorchBackend": "_backend",
    "TorchOptions": "_options",
    "choose_compute": "_precision",
    "load_model": "_model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
