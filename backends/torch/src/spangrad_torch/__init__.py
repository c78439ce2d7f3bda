"""The embedded torch backend of spangrad: samples and trains a transformers model in one process.

Names are imported when first used: the plug-in module lies in this package and must load without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spangrad_torch._backend import TorchBackend
    from spangrad_torch._batch_check import check_batch
    from spangrad_torch._chat_format import TemplateFormat
    from spangrad_torch._folder import written_whole
    from spangrad_torch._model import LoadedModel, find_model, load_model
    from spangrad_torch._options import LoraOptions, TorchOptions
    from spangrad_torch._precision import Compute, choose_compute
    from spangrad_torch._pretrained import read_pretrained
    from spangrad_torch._weight_file import weight_folder
    from spangrad_torch._work import is_untruncated, temperatures_of

__all__ = [
    "Compute",
    "LoadedModel",
    "LoraOptions",
    "TemplateFormat",
    "TorchBackend",
    "TorchOptions",
    "check_batch",
    "choose_compute",
    "find_model",
    "is_untruncated",
    "load_model",
    "read_pretrained",
    "temperatures_of",
    "weight_folder",
    "written_whole",
]

_HOMES = {
    "Compute": "_precision",
    "LoadedModel": "_model",
    "LoraOptions": "_options",
    "TemplateFormat": "_chat_format",
    "TorchBackend": "_backend",
    "TorchOptions": "_options",
    "check_batch": "_batch_check",
    "choose_compute": "_precision",
    "find_model": "_model",
    "is_untruncated": "_work",
    "load_model": "_model",
    "read_pretrained": "_pretrained",
    "temperatures_of": "_work",
    "weight_folder": "_weight_file",
    "written_whole": "_folder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
