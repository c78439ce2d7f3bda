"""What the end of a run says: results, errors and handoffs. Pure functions; nothing here imports LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

_END: Final = "__end__"


def is_control_flow(error: BaseException) -> bool:
    """Whether it is LangGraph's way of passing control (an interrupt, a command to the parent graph) and not an error."""
    return any(
        kind.__name__ == "GraphBubbleUp" and kind.__module__.startswith("langgraph.") for kind in type(error).__mro__
    )


def is_abandonment(error: BaseException) -> bool:
    """Whether nobody waited for the run's end: a stream left early, a task cancelled."""
    return isinstance(error, GeneratorExit | asyncio.CancelledError)


def tool_result(output: Any) -> Any:
    """What a tool answered; None where it only passes control."""
    if not _is_command(output):
        return _content(output)
    update = output.update
    messages = update.get("messages") if isinstance(update, dict) else None
    results = [_content(message) for message in messages or () if getattr(message, "type", None) == "tool"]
    return results[-1] if results else None


def tool_error(output: Any) -> str | None:
    """What went wrong, where a tool turned its error into an answer."""
    return str(_content(output)) if getattr(output, "status", None) == "error" else None


def successors(output: Any) -> tuple[str, ...]:
    """The nodes that a command of a tool or a node hands over to, each once."""
    return tuple(dict.fromkeys(_targets(output.goto))) if _is_command(output) else ()


def _targets(goto: Any) -> Iterator[str]:
    for target in goto if isinstance(goto, list | tuple) else (goto,):
        name = getattr(target, "node", target)  # a Send names its node
        if isinstance(name, str) and name and name != _END:
            yield name


def _is_command(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "Command" and kind.__module__.startswith("langgraph.")


def _content(output: Any) -> Any:
    return output.content if getattr(output, "type", None) == "tool" else output
