"""Agents: a Python function, plain or async, or a command line."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spangrad.errors import AgentError
from spangrad.rollouts._loading import is_async, load_function


@dataclass(frozen=True)
class FunctionAgent:
    """An agent that is a function of this process."""

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    """Its calls are coroutines; they share one event loop. A plain function gets a thread per rollout."""
    wants_rollout: bool
    """It takes the rollout as its second argument."""


@dataclass(frozen=True)
class CommandAgent:
    """An agent that is a command line, run once per rollout."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    """Where it runs."""


Agent = FunctionAgent | CommandAgent


def load_agent(spec: str | Sequence[str] | Callable[..., Any], folder: Path) -> Agent:
    """The agent of a configuration.

    Args:
        spec: "module:function" (called as `agent(task)` or `agent(task, rollout)`, where task is the task's data), a command
            line as one text or as a list of words, or the function itself.
        folder: where the module is looked for, and where the command runs.

    Raises:
        AgentError: it cannot be imported, called that way, or found.
    """
    if callable(spec):
        return _function_agent(spec, getattr(spec, "__qualname__", type(spec).__name__))
    if isinstance(spec, str) and re.fullmatch(r"[^\s:/\\]+:[^\s:/\\]+", spec):
        return _function_agent(load_function(spec, folder), spec)
    return load_command(spec, folder)


def _function_agent(function: Callable[..., Any], name: str) -> FunctionAgent:
    plain = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise AgentError(
            f"The agent {name!r} is a generator function", cure="Let it return its output instead of yielding it"
        )
    return FunctionAgent(name, function, is_async(function), _wants_rollout(function, name))


def _wants_rollout(function: Callable[..., Any], name: str) -> bool:
    """Whether a second argument is to be passed: one without a default, or one called rollout."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable written in C may not tell
        return False
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wanted = len(positional) > 1 and (
        positional[1].default is inspect.Parameter.empty or positional[1].name == "rollout"
    )
    try:
        signature.bind(*(("task", "rollout") if wanted else ("task",)))
    except TypeError as cause:
        raise AgentError(
            f"The agent {name!r} cannot be called: its parameters are {signature}",
            cure="An agent takes (task) or (task, rollout)",
        ) from cause
    return wanted


def load_command(spec: str | Sequence[str], folder: Path, *, noun: str = "agent") -> CommandAgent:
    """A command line of a configuration.

    Args:
        spec: as one text or as a list of words.
        folder: where it runs, and from where a path of the program is meant.
        noun: what it is, for messages.

    Raises:
        AgentError: it cannot be read, or there is no such program.
    """
    try:
        argv = tuple(shlex.split(spec)) if isinstance(spec, str) else tuple(spec)
    except ValueError as cause:
        raise AgentError(
            f"The {noun}'s command line {spec!r} cannot be read: {cause}", cure="Check its quotes"
        ) from cause
    if not argv or not all(isinstance(word, str) for word in argv):
        raise AgentError(
            f"The {noun} {spec!r} is no command line", cure=_what_to_write(noun, "a command and its arguments")
        )
    folder = folder.resolve()
    program = str(folder / argv[0]) if "/" in argv[0] else argv[0]
    found = shutil.which(program)
    if found is None:
        raise AgentError(
            f"The {noun} {shlex.join(argv)!r} cannot be run: there is no program {program!r}",
            cure=_what_to_write(noun, "a command that is installed"),
        )
    return CommandAgent(shlex.join(argv), (found, *argv[1:]), folder)


def _what_to_write(noun: str, command: str) -> str:
    """Only an agent may be a function as well as a command; a function that judges has a setting of its own."""
    if noun == "agent":
        return f'Write "module:function" for a Python function, or {command}'
    return f"Write {command}; a Python function that judges goes into agent.reward"
