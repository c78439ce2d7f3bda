"""An event loop in a thread of its own: servers are looked after and asked there, whichever loop the answers are for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from spangrad.errors import BackendError

T = TypeVar("T")


class Loop:
    """Runs coroutines until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="spangrad-vllm", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs it there; cancelling the future cancels it.

        Raises:
            BackendError: the loop is closed.
        """
        if self._loop.is_closed():
            work.close()
            raise BackendError("The vLLM servers have been closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def closed(self) -> bool:
        """Nothing runs there any more."""
        return self._loop.is_closed()

    def close(self) -> None:
        """Ends the loop, on which nothing runs any more. Closing twice is harmless."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
