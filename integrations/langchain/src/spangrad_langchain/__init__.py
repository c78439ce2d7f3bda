"""Hooks spangrad into LangChain and LangGraph. Importing this imports no framework; attaching, or using the handler, does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spangrad_langchain._integration import LangChainIntegration
from spangrad_langchain._shape import check

if TYPE_CHECKING:
    from spangrad_langchain._handler import SpangradCallbackHandler

__all__ = ["LangChainIntegration", "SpangradCallbackHandler"]


def __getattr__(name: str) -> Any:
    if name != "SpangradCallbackHandler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check()
    from spangrad_langchain._handler import SpangradCallbackHandler  # noqa: PLC0415 - as the module's first line says

    return SpangradCallbackHandler
