"""A rule: what is looked for in a rollout, and the reward of the call it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from spangrad.transitions import RULE_SOURCE

FUNCTION: Final = "function"
"""The condition that the user's own function stands for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a configuration, checked."""

    name: str
    """Of its rewards; no two rules of a run share one."""
    when: str
    """A key of `CONDITIONS`, or "function"."""
    reward: float = 0.0
    """Of each occurrence; not used with a function, which gives the rewards itself."""
    tool: str | None = None
    """Only what has to do with the tool of this name counts."""
    agent: str | None = None
    """Only calls of the agent of this name are rewarded."""
    at_most: float | None = None
    """Most that the sizes of its rewards come to in a rollout, positive; None does not limit."""
    at_least: int = 400
    """For `http_status`: the lowest status that counts."""
    seconds: float = 0.0
    """For `slow_tool`: what takes longer counts."""
    function: Callable[..., Any] | None = None
    """For `function`: called with the rollout's calls and spans; gives rewards by call id."""
    function_name: str = ""
    """The function as the configuration names it."""
    asynchronous: bool = False
    """Whether the function gives a coroutine."""

    @property
    def source(self) -> str:
        """As it stands in `RewardRecord.source`."""
        return f"{RULE_SOURCE}{self.name}"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that a condition was met."""

    call_id: str | None
    """The call it came from; None where that is not known."""
    agent: str | None
    """Whose call or span it is, as far as known."""
    tool: str | None
    """The tool it has to do with; None where there is none."""
