"""What a model is shown of the tools it may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_FIRST: Final = ("name", "description", "parameters")
_HIDDEN: Final = frozenset({"strict"})
"""Tells a server how to sample, and the model nothing; some frameworks always send it, others never."""


def shown_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as chat templates get them: equal for equal tools, in whatever order a client's JSON has their members.

    Args:
        tools: OpenAI's {"type": "function", "function": {...}}; other members are kept, behind the known ones.

    Returns:
        The same tools with `type` before `function`, and in `function` the name, the description and the parameters first; without
        `strict`, and without members that are null.
    """
    return [{"type": tool["type"], "function": _shown(tool["function"]), **_others(tool)} for tool in tools]


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    ordered = {name: function.get(name) for name in _FIRST} | dict(function)
    return {name: value for name, value in ordered.items() if value is not None and name not in _HIDDEN}


def _others(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name not in {"type", "function"} and value is not None}
