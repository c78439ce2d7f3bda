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
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from spangrad.rollouts._forgotten_clients import ClosedLoopFilter, drop_forgotten
from spangrad.rollouts._loop_thread import GRACE, LoopRun, LoopThread, Outcome
from spangrad.rollouts._loop_watch import Blocking

_logger = logging.getLogger("spangrad.rollouts")


@dataclass(frozen=True, slots=True)
class _Terms:
    """How long user code may run, and what happens then."""

    limit: float | None
    """Seconds."""
    deadline: float | None
    """The same as a time of the running loop."""
    on_stop: Callable[[], None]
    name: str

    @property
    def left(self) -> float | None:
        """Seconds."""
        return None if self.deadline is None else max(0.0, self.deadline - asyncio.get_running_loop().time())

    def stop(self, run: LoopRun | None) -> None:
        """Tells the code to stop, as far as it can be told."""
        self.on_stop()
        if run is not None:
            run.stop()


class Lanes:
    """Runs user code under time limits. `abandoned` counts the calls that would not stop.

    Args:
        workers: how many blocking calls coroutines may hand to threads at once.
    """

    def __init__(self, workers: int) -> None:
        self.abandoned = 0
        self._workers = workers
        self._loop: LoopThread | None = None
        self._blamed: set[str] = set()
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
            on_stop: called when the time is over, before the code is told to stop and given time to.
            name: what it is, for warnings about code that does not stop, or keeps other code from going on.

        Raises:
            asyncio.CancelledError: the caller was cancelled; the code was told to stop and given time to.
        """
        self._quiet.install()
        deadline = None if limit is None else asyncio.get_running_loop().time() + limit
        terms = _Terms(limit, deadline, on_stop, name)
        if asynchronous:
            return await self._on_loop(make, terms)
        outcome = await self._wait(asyncio.wrap_future(_in_thread(make)), None, terms)
        if inspect.isawaitable(outcome.value):
            awaitable = outcome.value
            return await self._on_loop(lambda: awaitable, terms)
        return outcome

    def close(self) -> None:
        """Stops the agents' loop."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        drop_forgotten()
        self._quiet.remove()

    def _agents_loop(self) -> LoopThread:
        if self._loop is None:
            self._loop = LoopThread(self._workers)
        return self._loop

    async def _on_loop(self, make: Callable[[], Any], terms: _Terms) -> Outcome:
        run = self._agents_loop().submit(make, terms.name)
        try:
            return await self._wait(asyncio.wrap_future(run.outcome), run, terms)
        finally:
            run.thread.forget(run)

    async def _wait(self, end: asyncio.Future[Outcome], run: LoopRun | None, terms: _Terms) -> Outcome:
        """Waits for code in a thread, or on a loop if it is a `run`, and stops it when its time is over or the loop is left."""
        ways_out: set[asyncio.Future[Any]] = {end} if run is None else {end, asyncio.wrap_future(run.left)}
        try:
            done, _ = await asyncio.wait(ways_out, timeout=terms.left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            terms.stop(run)
            await self._give_up(end, run, terms.name)
            raise
        if end in done and not _went_with_its_loop(end, run):
            return end.result()
        terms.stop(run)
        if not done:
            await self._give_up(end, run, terms.name)
        return Outcome(timed_out=True) if run is None else self._blamed_outcome(run, terms)

    async def _give_up(self, end: asyncio.Future[Outcome], run: LoopRun | None, name: str) -> None:
        """Waits a little for code that was told to stop, then leaves it behind; with its loop, if that takes no turns."""
        if (await asyncio.wait({end}, timeout=GRACE))[0]:
            return
        end.cancel()
        if run is not None and not await run.thread.answers():
            if self._loop is run.thread:
                self._loop = None
                run.thread.leave()
            if run.call.victim_of(0.0) is not None:
                return
        self.abandoned += 1
        _logger.warning(
            "%s does not stop: it is left behind and goes on in its thread (%d so far)", name, self.abandoned
        )

    def _blamed_outcome(self, run: LoopRun, terms: _Terms) -> Outcome:
        """How code on a loop ended whose time is over, or whose loop was left: by its own fault or by that of another."""
        limit = terms.limit or 0.0
        left = run.left.done()
        if left or run.call.victim_of(limit) is not None:
            self._warn_of(run.call.worst)
            return Outcome(blocked_by=str(run.call.worst or "code that is not known"))
        culprit = run.call.culprit(limit)
        self._warn_of(culprit)
        return (
            Outcome(timed_out=True, blocking=culprit.place or "not in its own code")
            if culprit
            else Outcome(timed_out=True)
        )

    def _warn_of(self, culprit: Blocking | None) -> None:
        """Says who blocks a loop, and where: once for each line."""
        if culprit is None or (said := culprit.place or culprit.who) in self._blamed:
            return
        self._blamed.add(said)
        _logger.warning(
            "The event loop that all async agents share is blocked by %s: the others cannot go on, and those that run out of "
            "time meanwhile are counted as broken infrastructure. Hand blocking code to `await asyncio.to_thread(...)`, or use "
            "an async client",
            culprit,
        )


def _went_with_its_loop(end: asyncio.Future[Outcome], run: LoopRun | None) -> bool:
    """Whether what ended was cancelled because its loop had been left."""
    if run is None or not run.thread.is_left:
        return False
    return end.cancelled() or isinstance(end.result().error, asyncio.CancelledError)


def _in_thread(make: Callable[[], Any]) -> Future[Outcome]:
    outcome: Future[Outcome] = Future()
    outcome.set_running_or_notify_cancel()  # from here on cancelling it has no effect, so that the thread may always set it
    context = contextvars.copy_context()
    threading.Thread(
        target=lambda: outcome.set_result(context.run(_called, make)), name="spangrad-agent", daemon=True
    ).start()
    return outcome


def _called(make: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(value=make())
    except BaseException as error:  # noqa: BLE001 - the border to user code, which may raise anything, SystemExit included
        return Outcome(error=error)
