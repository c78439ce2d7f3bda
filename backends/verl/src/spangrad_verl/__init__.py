"""The verl backend of spangrad: verl's FSDP2 actor on Ray is the learner, servers such as vLLM's draw the answers.

Names are imported when first used: the plug-in module lies in this package and must load without torch and verl.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spangrad_verl._backend import VerlBackend
    from spangrad_verl._options import VerlOptions

__all__ = ["VerlBackend", "VerlOptions"]

_HOMES = {"VerlBackend": "_backend", "VerlOptions": "_options"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
