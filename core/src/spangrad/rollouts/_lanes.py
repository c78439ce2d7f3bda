"""Where user code runs: coroutines on one long-lived event loop in a thread of its own, plain functions in threads.

One loop for all async agents, and for the whole life of the runner, because HTTP clients are often shared between rollouts
and break when the loop that opened their connections is gone. Threads are daemons, so that one that never ends cannot keep
the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from spangrad.rollouts._forgotten_clients import ClosedLoopFilter, close_forgotten, drop_forgotten, ended, other_tasks

_logger = logging.getLogger("spangrad.rollouts")

_GRACE: Final = 3.0
"""Seconds that code which was told to stop gets to do so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call of user code ended."""

    value: Any = None
    error: BaseException | None = None
    """What it raised."""
    timed_out: bool = False


@dataclass(eq=False)
class _Running:
    """A call under way, and how to ask it to stop."""

    outcome: Future[Outcome]
    stop: Callable[[], None]


class _LoopThread:
    """An event loop running in a daemon thread.

    Args:
        workers: threads for what its coroutines hand to `asyncio.to_thread`.
    """

    def __init__(self, workers: int) -> None:
        self.loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="spangrad-agents")
        self.loop.set_default_executor(self._workers)
        self._closing = False
        self._ending: asyncio.Task[None] | None = None  # the loop itself keeps no task alive
        self._thread = threading.Thread(target=self._run, name="spangrad-agents", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except SystemExit:  # raised in a task the user's code made; asyncio lets it through, the other agents go on
                _logger.warning("An agent called sys.exit() in a task of its own")
        self._workers.shutdown(wait=False, cancel_futures=True)
        self.loop.close()

    def submit(self, make: Callable[[], Awaitable[Any]]) -> _Running:
        """Starts what `make` gives as a task in a copy of the caller's context."""
        tasks: list[asyncio.Task[Outcome]] = []
        stopped = threading.Event()

        async def run() -> Outcome:
            tasks.append(asyncio.ensure_future(_awaited(make)))
            if stopped.is_set():
                tasks[0].cancel()
            await asyncio.wait(tasks)
            return Outcome(error=asyncio.CancelledError()) if tasks[0].cancelled() else tasks[0].result()

        def stop() -> None:
            stopped.set()
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        return _Running(asyncio.run_coroutine_threadsafe(run(), self.loop), stop)

    def close(self) -> None:
        """Cancels what still runs, closes async generators, ends the thread; a blocked loop is left behind."""
        self.leave()
        self._thread.join(2 * _GRACE)

    def leave(self) -> None:
        """Does the same without waiting: a blocked loop ends when it takes turns again."""
        self.loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = self.loop.create_task(self._wind_up())

    async def _wind_up(self) -> None:
        for task in other_tasks():
            task.cancel()
        await ended(other_tasks(), within=_GRACE)
        await close_forgotten(within=_GRACE)
        await self.loop.shutdown_asyncgens()
        self._closing = True
        self.loop.call_soon(self.loop.stop)


class Lanes:
    """Runs user code under time limits. `abandoned` counts the calls that would not stop.

    Args:
        workers: how many blocking calls coroutines may hand to threads at once.
    """

    def __init__(self, workers: int) -> None:
        self.abandoned = 0
        self._workers = workers
        self._loop: _LoopThread | None = None
        self._quiet = ClosedLoopFilter()

    async def call(
        self,
        make: Callable[[], Any],
        *,
        asynchronous: bool,
        limit: float | None,
        on_stop: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> Outcome:
        """Runs `make()` in its lane, in a copy of the current context, and waits for its end.

        Args:
            make: calls the user's function without arguments; whatever it raises is part of the outcome.
            asynchronous: the function returns a coroutine, to be run on the agents' loop. A plain function that returns an
                awaitable has it awaited there too.
            limit: seconds it may take; None does not limit.
            on_stop: called when the code is told to stop, before it is given time to.
            name: what it is, for the warning about code that does not stop.

        Raises:
            asyncio.CancelledError: the caller was cancelled; the code was told to stop and given time to.
        """
        self._quiet.install()
        loop = asyncio.get_running_loop()
        deadline = None if limit is None else loop.time() + limit
        running = self._agents_loop().submit(make) if asynchronous else _in_thread(make)
        outcome = await self._wait(running, deadline, on_stop, name)
        if inspect.isawaitable(outcome.value):
            awaitable = outcome.value
            outcome = await self._wait(self._agents_loop().submit(lambda: awaitable), deadline, on_stop, name)
        return outcome

    def close(self) -> None:
        """Stops the agents' loop."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        drop_forgotten()
        self._quiet.remove()

    def _agents_loop(self) -> _LoopThread:
        if self._loop is None:
            self._loop = _LoopThread(self._workers)
        return self._loop

    async def _wait(self, running: _Running, deadline: float | None, on_stop: Callable[[], None], name: str) -> Outcome:
        end = asyncio.wrap_future(running.outcome)
        left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            if (await asyncio.wait({end}, timeout=left))[0]:
                return end.result()
            running.stop()
            on_stop()
        except asyncio.CancelledError:
            running.stop()
            on_stop()
            await self._give_up(end, name)
            raise
        await self._give_up(end, name)
        return Outcome(timed_out=True)

    async def _give_up(self, end: asyncio.Future[Outcome], name: str) -> None:
        """Waits a little for code that was told to stop, then leaves it behind."""
        if (await asyncio.wait({end}, timeout=_GRACE))[0]:
            return
        end.cancel()
        self.abandoned += 1
        _logger.warning(
            "%s does not stop: it is left behind and goes on in its thread (%d so far)", name, self.abandoned
        )
        if self._loop is not None and not await _answers(self._loop.loop):
            _logger.warning(
                "The agents' event loop is blocked (a blocking call in async code?): later agents get a new one"
            )
            self._loop.leave()
            self._loop = None


def _in_thread(make: Callable[[], Any]) -> _Running:
    outcome: Future[Outcome] = Future()
    outcome.set_running_or_notify_cancel()  # from here on cancelling it has no effect, so that the thread may always set it
    context = contextvars.copy_context()
    threading.Thread(
        target=lambda: outcome.set_result(context.run(_called, make)), name="spangrad-agent", daemon=True
    ).start()
    return _Running(outcome, lambda: None)


def _called(make: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(value=make())
    except BaseException as error:  # noqa: BLE001 - the border to user code, which may raise anything, SystemExit included
        return Outcome(error=error)


async def _awaited(make: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return Outcome(value=await make())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the border to user code; SystemExit would end the loop for all agents
        return Outcome(error=error)


async def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop still takes turns."""
    turn = asyncio.Event()
    here = asyncio.get_running_loop()
    loop.call_soon_threadsafe(lambda: here.is_closed() or here.call_soon_threadsafe(turn.set))
    with suppress(TimeoutError):
        await asyncio.wait_for(turn.wait(), 1.0)
    return turn.is_set()
