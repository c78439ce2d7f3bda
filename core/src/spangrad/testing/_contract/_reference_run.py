"""One conversation that every integration has to bring to the gateway in the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


def tool_call_text(name: str, **arguments: object) -> str:
    """What a model writes to call a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A conversation with one tool call."""

    system: str
    """The system prompt."""
    question: str
    """The user's message."""
    tool: Mapping[str, Any]
    """OpenAI's {"type": "function", "function": {"name", "description", "parameters"}}."""
    answers: tuple[str, str]
    """What the model writes: the tool call, and the final answer."""

    def call_tool(self, arguments: Mapping[str, Any]) -> str:
        """The tool: the text that goes back to the model."""
        return f"{arguments['city']}: {arguments['degrees']} °C"


REFERENCE: Final = ReferenceRun(
    system="You report the weather.",
    question="Wie warm ist es in Zürich?",
    tool={
        "type": "function",
        "function": {
            "name": "measure",
            "description": "Measures the temperature.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
                "required": ["city", "degrees"],
            },
        },
    },
    answers=(tool_call_text("measure", city="Zurich", degrees=21), "Es sind 21 °C."),
)
"""The one all integrations run."""
