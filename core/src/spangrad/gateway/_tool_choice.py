"""Forcing a tool call: the assistant's turn is begun for the model, with text that belongs to the prompt.

The model then samples only what comes after it, so every token of its action is one it chose, with the log-probability it had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spangrad.gateway._engine import EngineError

_BEGUN = '<tool_call>{"name":'


def forced_opening(tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any] | None) -> str:
    """How the assistant's turn has to begin for the request's `tool_choice` to be met; empty when it may begin as it likes.

    Raises:
        EngineError: the choice needs a tool that is not offered (400).
    """
    if tool_choice is None or tool_choice in ("auto", "none"):
        return ""
    offered = [tool["function"]["name"] for tool in tools]
    if isinstance(tool_choice, str):  # "required"; other words do not pass the request's check
        if not offered:
            raise EngineError('tool_choice "required" needs tools', status=400, param="tool_choice")
        return _named(offered[0]) if len(offered) == 1 else _BEGUN
    name = tool_choice["function"]["name"]
    if name not in offered:
        known = ", ".join(offered) or "none"
        raise EngineError(
            f"tool_choice names {name!r}, which is not among the tools ({known})", status=400, param="tool_choice"
        )
    return _named(name)


def _named(name: str) -> str:
    return f'{_BEGUN} {json.dumps(name, ensure_ascii=False)}, "arguments":'
