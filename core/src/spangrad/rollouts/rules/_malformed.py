"""Answers in which the model meant to call a tool and did not manage to.

Of what the parser of the answer left as text the record keeps that text only, so the reasons are found anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spangrad.rollouts.rules._rule import Occurrence, Rule
from spangrad.rollouts.rules._work import Work, asked_tool, messages, tool_calls
from spangrad.transitions import Call

MARKS: Final = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=")
"""With what a tool call begins in the text of common models; what is left of it in an answer was no call."""


def malformed_tool_call(work: Work, rule: Rule) -> Iterator[Occurrence]:  # noqa: ARG001 - every condition gets its rule
    """Calls with such an answer, each once.

    An answer is one if tools were offered and its text has the mark of a tool call, if a tool call's arguments are no JSON
    object (none at all are taken for an empty one), or if it names a tool that was not offered.
    """
    for call in work.calls:
        offered = offered_tools(call)
        if any(_is_malformed(message, offered) for message in messages(call)):
            yield Occurrence(call.call_id, work.agents[call.call_id], None)


def offered_tools(call: Call) -> frozenset[str]:
    """Names of the tools the request offered, in the shape of Chat Completions or of Responses."""
    tools = call.request.get("tools")
    given = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    described = [inner if isinstance(inner := tool.get("function"), Mapping) else tool for tool in given]
    return frozenset(name for tool in described if isinstance(name := tool.get("name"), str))


def _is_malformed(message: Mapping[str, Any], offered: frozenset[str]) -> bool:
    content = message.get("content")
    if offered and isinstance(content, str) and any(mark in content for mark in MARKS):
        return True
    return any(
        name not in offered or not _is_object(arguments) for name, arguments in map(asked_tool, tool_calls(message))
    )


def _is_object(arguments: Any) -> bool:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return True
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False
