"""Running an agent that is a command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final

from spangrad.rollouts._agents import CommandAgent

TASK_VARIABLE: Final = "SPANGRAD_TASK"
_LONGEST_VARIABLE: Final = 100_000
"""Bytes; Linux refuses to start a process with a longer environment variable than 128 KiB."""
_OUTPUT_TAIL: Final = 1 << 20
_ERROR_TAIL: Final = 4_000
_GRACE: Final = 2.0
"""Seconds between asking a command to end and ending it."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended."""

    status: int | None
    """Its exit status, negative for a signal; None when it ran out of time."""
    output: Any
    """The JSON value of the last line it printed, or else all the text it printed."""
    stderr: str
    """The end of what it wrote to its standard error."""


async def run_command(
    agent: CommandAgent,
    data: Any,
    environment: Mapping[str, str],
    *,
    limit: float | None,
    on_stop: Callable[[], None] = lambda: None,
    inherited: Mapping[str, str] | None = None,
) -> CommandOutcome:
    """Runs the command with the task's JSON on its standard input and in SPANGRAD_TASK.

    Its process group is ended with it: nothing it started outlives the rollout. Its output goes through files, so that neither
    a full pipe nor a child that keeps one open can hold it up.

    Args:
        agent: the command.
        data: the task's data.
        environment: variables besides those it inherits.
        limit: seconds it may take; None does not limit.
        on_stop: called when its time is over, before it is told to end.
        inherited: variables it inherits; this process's own by default.

    Raises:
        OSError: the program cannot be started.
        asyncio.CancelledError: the caller was cancelled; the command has been ended.
    """
    text = json.dumps(data)
    variables = {**(os.environ if inherited is None else inherited), **environment}
    if len(text) <= _LONGEST_VARIABLE:
        variables[TASK_VARIABLE] = text
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(text.encode())
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *agent.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=agent.folder,
            env=variables,
            start_new_session=True,
        )
        in_time = await _ended(process, limit, on_stop)
        status = process.returncode if in_time else None
        return CommandOutcome(status, _output(_tail(stdout, _OUTPUT_TAIL)), _tail(stderr, _ERROR_TAIL).strip())


async def _ended(process: asyncio.subprocess.Process, limit: float | None, on_stop: Callable[[], None]) -> bool:
    """Waits for the command, then ends its process group; false if it ran out of time."""
    try:
        await asyncio.wait_for(process.wait(), limit)
    except TimeoutError:
        on_stop()
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE)
        return False
    finally:
        # The group's id stays taken as long as a member lives, so this reaches what the command left running, or nothing.
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()
    return True


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone already; macOS says EPERM for a group of zombies
        os.killpg(group, number)


def _tail(file: IO[bytes], size: int) -> str:
    """The last `size` bytes as text."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - size))
    return file.read().decode(errors="replace")


def _output(text: str) -> Any:
    text = text.strip()
    if not text:
        return None
    try:
        return json.loads(text.splitlines()[-1])
    except ValueError:
        return text
