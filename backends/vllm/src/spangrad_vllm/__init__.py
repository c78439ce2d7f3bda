"""vLLM servers as the sampler beside another backend's learner.

Names are imported when first used: the plug-in module lies in this package and must load quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spangrad_vllm._installation import SUPPORTED
    from spangrad_vllm._options import VllmOptions
    from spangrad_vllm._servers import VllmSampler, VllmServers

__all__ = ["SUPPORTED", "VllmOptions", "VllmSampler", "VllmServers"]

_HOMES = {
    "SUPPORTED": "_installation",
    "VllmOptions": "_options",
    "VllmSampler": "_servers",
    "VllmServers": "_servers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
