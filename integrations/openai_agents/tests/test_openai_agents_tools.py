"""What is recorded of tools, and that the program notices nothing of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    UserError,
    function_tool,
)
from agents.mcp import MCPServerStdio
from agents.tracing import FunctionSpanData
from integrations.openai_agents.tests.conftest import tool_call
from openai import AsyncOpenAI
from opentelemetry.trace import StatusCode

from spangrad_openai_agents._pieces import outcome_of

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached", "api")


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@function_tool
async def look_up(word: str) -> str:
    """Looks a word up."""
    await asyncio.sleep(0)
    return f"{word} is a word"


@function_tool
def broken(reason: str) -> str:
    """Fails; the model is told."""
    raise LookupError(reason)


@function_tool(failure_error_function=None)
def fatal(reason: str) -> str:
    """Fails, and the run with it."""
    raise LookupError(reason)


@function_tool(failure_error_function=lambda _context, error: f"sorry: {error}")
def sorry(reason: str) -> str:
    """Fails politely."""
    raise LookupError(reason)


def agent(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent(name="solver", instructions="Solve it.", tools=list(tools), **options)


async def test_a_tool_call_has_id_arguments_and_result(stage: Stage) -> None:
    stage.answers(tool_call("add", a=2, b=3), "5")

    with stage.rollout():
        result = await Runner.run(agent(add), "2+3?")

    (asked,) = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    said = stage.said("execute_tool add")
    assert said["gen_ai.tool.call.id"] == asked.call_id  # type: ignore[union-attr]  # of the items only function calls occur here
    assert said["gen_ai.tool.name"] == "add"
    assert said["gen_ai.tool.call.arguments"] == '{"a": 2, "b": 3}'
    assert said["gen_ai.tool.call.result"] == "5"
    assert said["gen_ai.agent.name"] == "solver"
    assert stage.span("execute_tool add").status.status_code is StatusCode.UNSET


async def test_parallel_tool_calls_lie_side_by_side_each_with_its_own_id(stage: Stage) -> None:
    stage.answers(tool_call("add", a=1, b=1) + tool_call("add", a=2, b=2) + tool_call("look_up", word="pi"), "done")

    with stage.rollout():
        result = await Runner.run(agent(add, look_up), "go")

    asked = {
        item.raw_item.call_id: item.raw_item.arguments  # type: ignore[union-attr]  # only function calls occur here
        for item in result.new_items
        if item.type == "tool_call_item"
    }
    spans = [span.attributes or {} for span in stage.kept() if span.name.startswith("execute_tool")]
    assert {said["gen_ai.tool.call.id"]: said["gen_ai.tool.call.arguments"] for said in spans} == asked
    assert [said["gen_ai.tool.call.result"] for said in spans] == ["2", "4", "pi is a word"]
    assert stage.tree() == [
        "invoke_agent solver",
        "  execute_tool add",
        "  execute_tool add",
        "  execute_tool look_up",
    ]


@pytest.mark.parametrize(("tool", "told"), [(broken, "an error occurred"), (sorry, "sorry: no such page")])
async def test_a_tool_that_fails_is_marked_and_the_model_is_told(stage: Stage, tool: Any, told: str) -> None:
    stage.answers(tool_call(tool.name, reason="no such page"), "I could not")

    with stage.rollout():
        result = await Runner.run(agent(tool), "go")

    assert result.final_output == "I could not"
    span = stage.span(f"execute_tool {tool.name}")
    assert span.status.status_code is StatusCode.ERROR
    assert str(span.status.description).startswith("Error running tool")
    assert told in str((span.attributes or {})["gen_ai.tool.call.result"]).lower()


async def test_what_a_tool_raises_reaches_the_program_as_ever(stage: Stage) -> None:
    stage.answers(tool_call("fatal", reason="no such page"))

    with stage.rollout(), pytest.raises(UserError, match="no such page") as caught:
        await Runner.run(agent(fatal), "go")

    assert isinstance(caught.value.__cause__, LookupError)
    assert stage.span("execute_tool fatal").status.status_code is StatusCode.ERROR
    assert stage.trained() == ["solver"]


class Unprintable:
    def __str__(self) -> str:
        raise OSError("not again")


def test_a_result_whose_text_cannot_be_had_is_named_by_its_type() -> None:
    outcome = outcome_of(FunctionSpanData(name="odd", input="{}", output=Unprintable()))

    assert outcome["gen_ai.tool.call.result"] == "<Unprintable whose text raises OSError>"


async def test_arguments_and_results_stay_out_where_the_program_keeps_them_out_of_traces(stage: Stage) -> None:
    stage.answers(tool_call("add", a=2, b=3), "5")

    with stage.rollout():
        await Runner.run(agent(add), "2+3?", run_config=RunConfig(trace_include_sensitive_data=False))

    said = stage.said("execute_tool add")
    assert said["gen_ai.tool.name"] == "add"
    assert "gen_ai.tool.call.id" in said
    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & set(said)


async def test_a_call_made_by_a_tool_itself_lies_in_that_tool(stage: Stage) -> None:
    @function_tool
    async def ask(question: str) -> str:
        """Asks the model."""
        async with AsyncOpenAI() as client:
            answer = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": question}]
            )
        return answer.choices[0].message.content or ""

    stage.answers(tool_call("ask", question="why?"), "because", "Because.")

    with stage.rollout():
        result = await Runner.run(agent(ask), "go")

    assert result.final_output == "Because."
    assert stage.trained() == ["solver", "solver", "solver"]
    assert "execute_tool ask" in stage.callers()


MCP_SERVER = """
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("calculator")


@server.tool()
def double(number: int) -> str:
    "Doubles."
    return str(2 * number)


server.run()
"""


async def test_a_tool_of_an_mcp_server_is_a_tool_like_others(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(MCP_SERVER)
    stage.answers(tool_call("double", number=21), "42")

    async with MCPServerStdio(params={"command": sys.executable, "args": [str(tmp_path / "server.py")]}) as server:
        with stage.rollout():
            result = await Runner.run(agent(mcp_servers=[server]), "2*21?")

    assert result.final_output == "42"
    assert stage.tree() == ["invoke_agent solver", "  execute_tool double"]
    said = stage.said("execute_tool double")
    assert said["gen_ai.tool.call.arguments"] == '{"number": 21}'
    assert "42" in said["gen_ai.tool.call.result"]
    assert stage.trained() == ["solver", "solver"]
