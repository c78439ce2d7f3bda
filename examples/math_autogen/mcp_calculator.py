"""The calculator as an MCP server over standard input and output: `python mcp_calculator.py`."""

from __future__ import annotations

from calculator import calculate
from mcp.server.fastmcp import FastMCP

server = FastMCP("calculator", log_level="WARNING")


@server.tool(description="Arithmetic")
def calc(expression: str) -> str:
    """Works out an arithmetic expression; what is wrong with one is told to the model."""
    return calculate(expression)


if __name__ == "__main__":
    server.run()
