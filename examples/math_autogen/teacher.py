"""Worked conversations as AutoGen itself puts them to a model: the agent runs, and its model's part is played by the solution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import agent
from autogen_ext.models.openai import BaseOpenAIChatCompletionClient
from openai.types.chat import ChatCompletion


async def worked(task: Mapping[str, Any], **tools: Any) -> dict[str, Any]:
    """The whole conversation of an agent that does the task right, in OpenAI's fine-tuning format.

    Args:
        task: with its `steps` and `answer`.
        tools: what `agent.assistant` takes.
    """
    endpoint = Solution([_call(number, step) for number, step in enumerate(task["steps"])], f"answer: {task['answer']}")
    client = BaseOpenAIChatCompletionClient(
        endpoint.as_openai_client(), create_args={"model": agent.MODEL}, model_info=agent.MODEL_INFO
    )
    await agent.ask(agent.assistant(client, model_calls=len(task["steps"]) + 1, **tools), task)
    return {"messages": [*endpoint.messages, endpoint.final], "tools": endpoint.tools}


class Solution:
    """In place of an OpenAI endpoint: gives one answer after the other and keeps what it was asked last."""

    def __init__(self, calls: Sequence[dict[str, Any]], answer: str) -> None:
        self.final: dict[str, Any] = {"role": "assistant", "content": answer}
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self._answers = iter(
            [*({"role": "assistant", "content": None, "tool_calls": [call]} for call in calls), self.final]
        )

    def as_openai_client(self) -> Any:
        """What AutoGen's client needs of `openai.AsyncOpenAI`."""
        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=self._create)))

    async def _create(self, *, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **_: Any) -> ChatCompletion:
        self.messages, self.tools = messages, tools
        message = next(self._answers)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return ChatCompletion.model_validate(
            {
                "id": "worked",
                "object": "chat.completion",
                "created": 0,
                "model": agent.MODEL,
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            }
        )


def _call(number: int, expression: str) -> dict[str, Any]:
    function = {"name": "calc", "arguments": json.dumps({"expression": expression})}
    return {"id": f"call_{number}", "type": "function", "function": function}
