"""The one thread in which a learner computes, so that the event loop stays free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import torch

from spangrad.errors import BackendError

R = TypeVar("R")


class _GivenUpError(Exception):
    """Ends work nobody waits for any more; never leaves this module."""


class Worker:
    """Runs work, one piece after the other.

    Args:
        threads: torch threads; None leaves torch's default.
    """

    def __init__(self, threads: int | None) -> None:
        start = partial(torch.set_num_threads, threads) if threads is not None else None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spangrad-learner", initializer=start)
        self._given_up = threading.Event()
        self._closed = False

    def run_now(self, work: Callable[[], R]) -> R:
        """Runs work and blocks until it is done: for the time before there is an event loop."""
        return self._pool.submit(work).result()

    async def run(self, work: Callable[[], R]) -> R:
        """Runs work without blocking the event loop.

        When the caller is cancelled, work is ended where it next calls `check` and waited for: the weights must not change
        behind the back of whoever goes on.

        Raises:
            BackendError: the worker is closed, or was closed meanwhile.
        """
        if self._closed:
            raise BackendError("The learner is closed")
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except _GivenUpError as error:
            raise BackendError("The learner was closed before the step was taken") from error
        except asyncio.CancelledError:
            self._given_up.set()
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not self._closed:
                self._given_up.clear()
            if not future.cancelled():
                future.exception()  # seen: the cancellation is what counts
            raise

    def check(self) -> None:
        """Called by work where it can be ended; does not return if it should be."""
        if self._given_up.is_set():
            raise _GivenUpError

    async def close(self) -> None:
        """Ends the work in flight where it next calls `check`; nothing runs afterwards. Closing twice is harmless."""
        self._closed = True
        self._given_up.set()
        await asyncio.to_thread(self._pool.shutdown)
