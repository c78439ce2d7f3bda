"""The user's reward function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spangrad.errors import AgentError
from spangrad.rollouts._loading import is_async, load_function

_OFFERED: Final = ("task", "output", "rollout")


@dataclass(frozen=True)
class RewardFunction:
    """A function of what it declares: task (the task's data), output (what the agent returned), rollout."""

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    takes: tuple[str, ...]
    """Which of task, output and rollout it declares."""

    def arguments(self, **offered: Any) -> dict[str, Any]:
        """Those of task, output and rollout that it takes."""
        return {name: offered[name] for name in self.takes}


def load_reward(spec: str | Callable[..., Any], folder: Path, *, noun: str = "reward function") -> RewardFunction:
    """The reward function of a configuration; also for other judgements of a finished rollout.

    Args:
        spec: "module:function", or the function itself.
        folder: where the module is looked for.
        noun: what the function is, for messages.

    Raises:
        AgentError: it cannot be imported, or needs arguments other than task, output and rollout.
    """
    function = spec if callable(spec) else load_function(spec, folder, noun=noun)
    name = spec if isinstance(spec, str) else str(getattr(spec, "__qualname__", type(spec).__name__))
    parameters = inspect.signature(function).parameters.values()
    unknown = [
        p.name
        for p in parameters
        if p.name not in _OFFERED and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    positional_only = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if unknown or positional_only:
        raise AgentError(
            f"The {noun} {name!r} needs {', '.join(unknown or positional_only)}",
            cure=f"Its parameters are passed by name: any of {', '.join(_OFFERED)}",
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    declared = {p.name for p in parameters}
    return RewardFunction(name, function, is_async(function), tuple(n for n in _OFFERED if takes_all or n in declared))
