"""Results of other threads, brought to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future


class Landing:
    """Brings what other threads' futures come to to one event loop.

    Waking a loop costs a system call in the thread that does it, in the middle of which Python's lock goes to whoever wants it. The
    store finishes many calls with one commit, so all that end until the loop looks are brought by one waking; `asyncio.wrap_future`
    wakes it for each.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[asyncio.Future[None], Future[None]]] = deque()
        self._called = False
        """The loop was woken and has not looked yet."""

    def of(self, future: Future[None]) -> asyncio.Future[None]:
        """Ends as the future does, on the running loop, which must be the same every time. Cancelling it leaves the future alone."""
        landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda ended: self._bring(landed, ended))
        return landed

    def _bring(self, landed: asyncio.Future[None], ended: Future[None]) -> None:
        """Any thread."""
        self._ended.append((landed, ended))
        if not self._called:
            self._called = True
            try:
                landed.get_loop().call_soon_threadsafe(self._land)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._ended.clear()

    def _land(self) -> None:
        """On the loop."""
        self._called = False  # first, so that what ends from here on wakes the loop again
        while self._ended:
            landed, ended = self._ended.popleft()
            if landed.done():
                continue
            if (error := ended.exception()) is None:
                landed.set_result(None)
            else:
                landed.set_exception(error)
