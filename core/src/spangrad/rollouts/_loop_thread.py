"""An event loop in a thread of its own, on which the coroutines of many rollouts take turns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from spangrad.rollouts._forgotten_clients import close_forgotten, ended, other_tasks
from spangrad.rollouts._loop_watch import LoopCall, LoopWatch

_logger = logging.getLogger("spangrad.rollouts")

GRACE: Final = 3.0
"""Seconds that code which was told to stop gets to do so."""
_TURN: Final = 1.0
"""Seconds in which a loop that takes turns gives one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call of user code ended."""

    value: Any = None
    error: BaseException | None = None
    """What it raised."""
    timed_out: bool = False
    blocking: str = ""
    """Of one that timed out: where it kept the loop that it shares with others from taking turns."""
    blocked_by: str = ""
    """Who kept the loop from taking turns, so that it could not end: through no fault of its own, so it is not `timed_out`."""


@dataclass(eq=False)
class LoopRun:
    """A coroutine under way on a loop."""

    thread: LoopThread
    call: LoopCall
    outcome: Future[Outcome]
    tasks: list[asyncio.Task[Outcome]]
    """Its task, once it has begun; only the loop touches it."""
    stopped: threading.Event
    """Set before it is cancelled, for one that has not begun."""
    left: Future[None] = field(default_factory=Future)
    """Done when the loop is left behind with the coroutine on it, though that was not the one that blocks."""

    def stop(self) -> None:
        """Cancels it, now or when its loop takes turns again."""
        self.stopped.set()
        with suppress(RuntimeError):  # the loop has been closed
            self.thread.loop.call_soon_threadsafe(lambda: [task.cancel() for task in self.tasks])


class LoopThread:
    """An event loop running in a daemon thread.

    Args:
        workers: threads for what its coroutines hand to `asyncio.to_thread`.
    """

    def __init__(self, workers: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_left = False
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="spangrad-agents")
        self.loop.set_default_executor(self._workers)
        self._watch = LoopWatch(self.loop)
        self._runs: set[LoopRun] = set()
        self._closing = False
        self._ending: asyncio.Task[None] | None = None  # the loop itself keeps no task alive
        self._thread = threading.Thread(target=self._run, name="spangrad-agents", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._watch.watch(threading.get_ident())
        while not self._closing:
            try:
                self.loop.run_forever()
            except SystemExit:  # raised in a task the user's code made; asyncio lets it through, the other agents go on
                _logger.warning("An agent called sys.exit() in a task of its own")
        self._watch.end()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self.loop.close()

    def submit(self, make: Callable[[], Awaitable[Any]], name: str) -> LoopRun:
        """Starts what `make` gives as a task in a copy of the caller's context.

        Args:
            make: calls the user's function.
            name: what is run, for who is told that it blocks the loop.
        """
        tasks: list[asyncio.Task[Outcome]] = []
        stopped = threading.Event()

        async def run() -> Outcome:
            tasks.append(asyncio.ensure_future(_awaited(make)))
            if stopped.is_set():
                tasks[0].cancel()
            await asyncio.wait(tasks)
            return Outcome(error=asyncio.CancelledError()) if tasks[0].cancelled() else tasks[0].result()

        call, outcome = self._watch.begin_call(name, lambda: asyncio.run_coroutine_threadsafe(run(), self.loop))
        one = LoopRun(self, call, outcome, tasks, stopped)
        self._runs.add(one)
        return one

    def forget(self, one: LoopRun) -> None:
        """Forgets a coroutine that nobody waits for any more."""
        self._runs.discard(one)
        self._watch.end_call(one.call)

    async def answers(self) -> bool:
        """Whether the loop still takes turns."""
        turn = asyncio.Event()
        here = asyncio.get_running_loop()
        try:
            self.loop.call_soon_threadsafe(lambda: here.is_closed() or here.call_soon_threadsafe(turn.set))
        except RuntimeError:  # it is closed
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(turn.wait(), _TURN)
        return turn.is_set()

    def close(self) -> None:
        """Cancels what still runs, closes async generators, ends the thread; a blocked loop is left behind."""
        self.loop.call_soon_threadsafe(self._begin_to_end)
        self._thread.join(2 * GRACE)

    def leave(self) -> None:
        """Does the same without waiting: a blocked loop ends when it takes turns again. Whoever is on it, but the one that
        blocks it, is told.
        """
        self.is_left = True
        guilty = self._watch.blocker()
        self.loop.call_soon_threadsafe(self._begin_to_end)
        for one in self._runs:
            if one.call is not guilty and not one.left.done():
                one.left.set_result(None)

    def _begin_to_end(self) -> None:
        self._ending = self.loop.create_task(self._wind_up())

    async def _wind_up(self) -> None:
        for task in other_tasks():
            task.cancel()
        await ended(other_tasks(), within=GRACE)
        await close_forgotten(within=GRACE)
        await self.loop.shutdown_asyncgens()
        self._closing = True
        self.loop.call_soon(self.loop.stop)


async def _awaited(make: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return Outcome(value=await make())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the border to user code; SystemExit would end the loop for all agents
        return Outcome(error=error)
