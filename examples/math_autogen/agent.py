"""A maths agent in AutoGen: an `AssistantAgent` with a calculator, as one writes it without any training in mind."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_core.models import ChatCompletionClient, ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from calculator import calculate, last_number, number, same_number

if TYPE_CHECKING:
    from autogen_ext.tools.mcp import McpWorkbench

NAME = "mathagent"
MODEL = "policy"
MODEL_INFO = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)
MAX_TOKENS, MODEL_CALLS = 40, 3
SYSTEM = "Use calc for each step, then answer."
CALC_X_MAX_TOKENS, CALC_X_MODEL_CALLS = 2048, 10
CALC_X_SYSTEM = (
    "Solve the problem step by step. Work out every number with the calculator. "
    "End with a line `answer: ` and the number alone, or the letter of the right choice where there are choices."
)


async def solve(task: Mapping[str, Any]) -> str | None:
    """Answers the task's question; None if the agent was still calculating when its model calls were used up."""
    return await ask(assistant(model_client(MAX_TOKENS), tools=[calculator()]), task)


async def solve_with_mcp(task: Mapping[str, Any]) -> str | None:
    """The same with the calculator behind an MCP server."""
    return await ask(assistant(model_client(MAX_TOKENS), workbench=shared_mcp_calculator()), task)


async def solve_calc_x(task: Mapping[str, Any]) -> str | None:
    """The same for real problems and a model that reads instructions: more room, more calls."""
    client = model_client(CALC_X_MAX_TOKENS)
    agent = assistant(client, tools=[calculator()], system=CALC_X_SYSTEM, model_calls=CALC_X_MODEL_CALLS)
    return await ask(agent, task)


async def ask(agent: AssistantAgent, task: Mapping[str, Any]) -> str | None:
    """Runs the agent on a question and takes its last message, if it is an answer and not a tool's result."""
    last = (await agent.run(task=task["question"])).messages[-1]
    return last.content if isinstance(last, TextMessage) and last.source == NAME else None


def assistant(
    client: ChatCompletionClient, *, system: str = SYSTEM, model_calls: int = MODEL_CALLS, **tools: Any
) -> AssistantAgent:
    """The agent: it calls its tools one after the other until it answers.

    Args:
        client: its model.
        system: its system message.
        model_calls: after so many it ends, whatever the model says.
        tools: `tools` or `workbench`, as `AssistantAgent` takes them.
    """
    return AssistantAgent(NAME, client, system_message=system, max_tool_iterations=model_calls, **tools)


@cache
def model_client(max_tokens: int) -> OpenAIChatCompletionClient:
    """One client, and so one pool of connections, for all rollouts; made when first used, with the environment of then."""
    return OpenAIChatCompletionClient(model=MODEL, max_tokens=max_tokens, model_info=MODEL_INFO)


@cache
def calculator() -> FunctionTool:
    """The calculator as a tool in this process."""

    async def calc(expression: str) -> str:
        return calculate(expression)

    return FunctionTool(calc, description="Arithmetic")


def mcp_calculator() -> McpWorkbench:
    """The calculator as an MCP server: a process of its own, started when it is first asked for its tools.

    Raises:
        ImportError: the MCP SDK is not installed, or one that AutoGen 0.7 does not know.
    """
    try:
        from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams  # noqa: PLC0415 - only here is mcp needed
    except ImportError as error:
        raise ImportError("AutoGen 0.7 needs the MCP SDK below version 2: pip install 'mcp>=1.11,<2'") from error
    script = Path(__file__).with_name("mcp_calculator.py")
    return McpWorkbench(StdioServerParams(command=sys.executable, args=[str(script)]))


@cache
def shared_mcp_calculator() -> McpWorkbench:
    """One server for all rollouts."""
    return mcp_calculator()


def reward(task: Mapping[str, Any], output: str | None) -> float:
    """1 for the right answer, else 0."""
    return float(success(task, output))


def success(task: Mapping[str, Any], output: str | None) -> bool:
    """Whether the answer is right: what follows the last `answer:`, or the whole text where there is none.

    Of it the last number counts, or, for a task with choices, the one letter it consists of.
    """
    said = (output or "").lower().rpartition("answer:")[2]
    right = str(task["answer"])
    if right.isalpha():
        return said.strip(" .()\n") == right.lower()
    given, expected = last_number(said), number(right)
    return given is not None and expected is not None and same_number(given, expected)
