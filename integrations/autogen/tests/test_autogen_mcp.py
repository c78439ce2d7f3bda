"""Tools of an MCP server, through AutoGen's own workbench for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from integrations.autogen.tests.conftest import lines, tool_call
from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")

SERVER = """\
from mcp.server.fastmcp import FastMCP

server = FastMCP("sums")


@server.tool()
def add(a: int, b: int) -> str:
    if a == 13:
        raise ValueError("unlucky")
    return str(a + b)


server.run("stdio")
"""


async def test_the_tools_of_an_mcp_server_are_recorded_with_results_and_errors(stage: Stage, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    stage.answers(tool_call("add", a=1, b=2) + tool_call("add", a=13, b=2), "3")

    async with McpWorkbench(StdioServerParams(command=sys.executable, args=[str(server)])) as workbench:
        agent = AssistantAgent("solver", stage.client(), workbench=workbench, reflect_on_tool_use=True)
        with stage.rollout():
            await agent.run(task="1+2?")

    assert stage.agents() == ["solver", "solver"]
    assert stage.tree() == lines(
        "invoke_agent solver",
        "  openai.chat",
        "  execute_tool add",
        "  execute_tool add",
        "  openai.chat",
    )
    good, bad = [span for span in stage.kept() if span.name == "execute_tool add"]
    assert (good.attributes or {})["gen_ai.tool.call.arguments"] == '{"a": 1, "b": 2}'
    assert (good.attributes or {})["gen_ai.tool.call.result"] == "3"
    assert "unlucky" in str((bad.attributes or {})["gen_ai.tool.call.result"])
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
