"""The same question to the same tool, again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from spangrad import semconv
from spangrad.rollouts.rules._rule import Occurrence, Rule
from spangrad.rollouts.rules._tool_runs import tool_runs
from spangrad.rollouts.rules._work import Work, asked_tool, messages, tool_calls

_Asked = tuple[str, str]
"""A tool's name, and its arguments in one way of writing them."""


def repeated_call(work: Work, rule: Rule) -> Iterator[Occurrence]:  # noqa: ARG001 - every condition gets its rule
    """Tool calls that the rollout made before: the same tool with equal arguments.

    The model's own tool calls are looked at; where no answer has any, the spans of tools. Several answers to one question
    (`n`) are not earlier than each other.
    """
    if any(tool_calls(message) for call in work.calls for message in messages(call)):
        yield from _among_answers(work)
    else:
        yield from _among_runs(work)


def _among_answers(work: Work) -> Iterator[Occurrence]:
    before: set[_Asked] = set()
    for call in work.calls:
        new: set[_Asked] = set()
        for message in messages(call):
            own: set[_Asked] = set()
            for name, arguments in map(asked_tool, tool_calls(message)):
                asked = (str(name), _canonical(arguments))
                if asked in before or asked in own:
                    yield Occurrence(call.call_id, work.agents[call.call_id], str(name))
                own.add(asked)
            new |= own
        before |= new


def _among_runs(work: Work) -> Iterator[Occurrence]:
    before: set[_Asked] = set()
    for run in tool_runs(work):
        arguments = run.span.attributes.get(semconv.TOOL_ARGUMENTS)
        if run.occurrence.tool is None or arguments is None:
            continue
        asked = (run.occurrence.tool, _canonical(arguments))
        if asked in before:
            yield run.occurrence
        before.add(asked)


def _canonical(arguments: Any) -> str:
    """Equal for equal JSON, in whatever order and with whatever spaces; other text stays as it is."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return str(arguments)
