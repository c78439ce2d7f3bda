"""What a rule may look for, by the word of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from spangrad.rollouts.rules._http_status import http_status
from spangrad.rollouts.rules._malformed import malformed_tool_call
from spangrad.rollouts.rules._repeated import repeated_call
from spangrad.rollouts.rules._rule import FUNCTION, Occurrence, Rule
from spangrad.rollouts.rules._tool_runs import tool_runs
from spangrad.rollouts.rules._work import Work

Condition = Callable[[Work, Rule], Iterator[Occurrence]]
"""Finds every time it was met in a rollout, in order."""


def tool_error(work: Work, rule: Rule) -> Iterator[Occurrence]:  # noqa: ARG001 - every condition gets its rule
    """Tools that failed: status ERROR, or an exception on record."""
    return (run.occurrence for run in tool_runs(work) if run.failed)


def tool_ok(work: Work, rule: Rule) -> Iterator[Occurrence]:  # noqa: ARG001 - every condition gets its rule
    """Tools that ended by themselves and did not fail."""
    return (run.occurrence for run in tool_runs(work) if run.complete and not run.failed)


def slow_tool(work: Work, rule: Rule) -> Iterator[Occurrence]:
    """Tools that took longer than `rule.seconds`, whatever came of them; also those that were under way at the end."""
    return (run.occurrence for run in tool_runs(work) if run.seconds > rule.seconds)


CONDITIONS: Final[Mapping[str, Condition]] = {
    "tool_error": tool_error,
    "tool_ok": tool_ok,
    "http_status": http_status,
    "malformed_tool_call": malformed_tool_call,
    "slow_tool": slow_tool,
    "repeated_call": repeated_call,
}

OPTIONS: Final[Mapping[str, Mapping[str, bool]]] = {
    "tool_error": {"reward": True, "tool": False, "agent": False},
    "tool_ok": {"reward": True, "tool": False, "agent": False},
    "http_status": {"reward": True, "at_least": False, "tool": False, "agent": False},
    "malformed_tool_call": {"reward": True, "agent": False},
    "slow_tool": {"reward": True, "seconds": True, "tool": False, "agent": False},
    "repeated_call": {"reward": True, "tool": False, "agent": False},
    FUNCTION: {"call": True},
}
"""Condition -> the options it honours besides `name` and `at_most`, and whether it needs them."""
