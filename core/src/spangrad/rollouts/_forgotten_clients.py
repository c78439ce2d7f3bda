"""HTTP clients that agents make and do not close.

An asynchronous client that is collected as garbage closes its connections in a task on whichever event loop runs in the thread
that collects. If its own loop is closed by then, as after an agent's `asyncio.run`, the task fails with "Event loop is
closed", and asyncio logs a traceback for each: noise, since sockets close with their objects.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any, Final

_COLLECTIONS: Final = 3
"""Rounds of garbage collection: what is freed in one may let go of more."""
_ASYNCIO: Final = logging.getLogger("asyncio")


class ClosedLoopFilter(logging.Filter):
    """Keeps those tracebacks out of asyncio's log, between `install` and `remove`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for the failure of a task that nobody waits for because some event loop is closed."""
        error = record.exc_info[1] if record.exc_info else None
        return not (
            isinstance(error, RuntimeError)
            and str(error) == "Event loop is closed"
            and record.getMessage().startswith("Task exception was never retrieved")
        )

    def install(self) -> None:
        """Doing it again is harmless."""
        _ASYNCIO.addFilter(self)

    def remove(self) -> None:
        """Likewise."""
        _ASYNCIO.removeFilter(self)


async def close_forgotten(*, within: float) -> None:
    """Collects the clients of the running loop that nobody has any more, and waits until they have closed themselves.

    Args:
        within: seconds they get, per round.
    """
    for _ in range(_COLLECTIONS):
        gc.collect()
        if not (closing := other_tasks()):
            return
        await ended(closing, within=within)


def drop_forgotten() -> None:
    """Collects the clients of loops that are closed already, in a thread without a loop that they could start a task on."""
    thread = threading.Thread(target=gc.collect, name="spangrad-collection", daemon=True)
    thread.start()
    thread.join()


def other_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of the running loop but the present one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def ended(tasks: set[asyncio.Task[Any]], *, within: float) -> None:
    """Waits for tasks to end, but not for long; what they raised is of no interest any more."""
    if tasks:
        await asyncio.wait(tasks, timeout=within)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
