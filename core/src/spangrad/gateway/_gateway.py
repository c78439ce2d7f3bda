"""The gateway: rollouts in, calls out, an HTTP server in between."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from spangrad.capture import LateResults
from spangrad.errors import GatewayError
from spangrad.gateway._access import AccessBook, RolloutAccess, RolloutTally, SamplingOverride
from spangrad.gateway._address import Address
from spangrad.gateway._app import make_app
from spangrad.gateway._identity import Doorkeeper
from spangrad.gateway._landing import Landing
from spangrad.gateway._routes import Route, RouteTable
from spangrad.gateway._server import ServerThread
from spangrad.gateway._state import GatewayState, IdCount
from spangrad.store import Store


class Gateway:
    """The OpenAI-compatible server agents talk to, in its own thread with its own event loop.

    Args:
        store: where every call is written before its answer is complete.
        routes: which model alias is answered by which engine.
        address: where it listens; a free port of this machine alone when None.
        evaluator_key: key that may open and finish rollouts and give rewards over HTTP; made up when None.
        allow_anonymous: clients on this machine may call without a rollout's key; such calls are served.
    """

    def __init__(
        self,
        store: Store,
        routes: RouteTable | Iterable[Route],
        *,
        address: Address | None = None,
        evaluator_key: str | None = None,
        allow_anonymous: bool = True,
    ) -> None:
        self._evaluator_key = evaluator_key or secrets.token_urlsafe(24)
        self._address = address or Address()
        book = AccessBook()
        self._state = GatewayState(
            store=store,
            routes=routes if isinstance(routes, RouteTable) else RouteTable(routes),
            book=book,
            door=Doorkeeper(book, self._evaluator_key, allow_anonymous=allow_anonymous),
        )
        self._state.gate.set()
        app = make_app(self._state, lambda: self.base_url)
        self._server = ServerThread(app, address=self._address, name="spangrad-gateway")

    def start(self) -> None:
        """Listens; returns when requests are answered.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        paused = not self._state.gate.is_set()
        # These belong to one loop, and this start makes a new one.
        self._state.gate, self._state.landing, self._state.idle = asyncio.Event(), Landing(), None
        if not paused:
            self._state.gate.set()
        self._server.start()

    def stop(self) -> None:
        """Ends requests in flight (recorded as undelivered), stops listening, closes the engines. Harmless when stopped."""
        if self._server.loop is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._wind_down(), self._server.loop).result()
        finally:
            self._server.stop()
            for entry in self._state.book.entries():
                if entry.waiting:  # its closing came too late for the loop
                    self._state.close(entry)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """Root URL without a path, such as `http://127.0.0.1:8123`; `{base_url}/v1` is an OpenAI base URL."""
        return self._address.base_url

    @property
    def evaluator_key(self) -> str:
        """May open and finish rollouts and give rewards over HTTP."""
        return self._evaluator_key

    def open_rollout(self, rollout_id: str, attempt: int, *, sampling: SamplingOverride | None = None) -> RolloutAccess:
        """Lets an attempt of a rollout call. Safe from any thread. Writes nothing to the store: the runner records rollouts.

        Raises:
            GatewayError: this attempt was opened before, as far as that is known, or the gateway is not running.
        """
        if self._server.loop is None:
            raise GatewayError("The gateway is not running", cure="Call its start() first")
        return self._state.book.add(self.base_url, rollout_id, attempt, sampling).access

    def close_rollout(self, rollout_id: str, attempt: int, *, final: bool = False) -> Future[RolloutTally]:
        """Ends an attempt: requests in flight are stopped and recorded as undelivered, later ones are answered 409 and recorded
        as late. Safe from any thread; closing twice is harmless. When a thousand others have been closed after it, the attempt
        is forgotten, and its key is as good as any unknown one.

        Args:
            rollout_id: which rollout.
            attempt: which try at it.
            final: rewards over HTTP are refused from here on too. Without it the evaluator may still give some: to an attempt
                that came to its end by itself, and is being judged.

        Returns:
            A future that is done when the last request in flight has been recorded
            (`await asyncio.wrap_future(...)` or `.result()`).

        Raises:
            GatewayError: it was never opened, or is forgotten.
        """
        entry = self._state.book.find(rollout_id, attempt)
        if entry is None:
            raise GatewayError(f"Attempt {attempt} of rollout {rollout_id!r} was never opened, or closed long ago")
        drained: Future[RolloutTally] = Future()
        entry.waiting.append(drained)
        self._on_loop(lambda: self._state.close(entry, final=final))
        return drained

    def remembers(self, rollout_id: str, attempt: int) -> bool:
        """Whether an attempt is open, or was closed lately. Safe from any thread."""
        return self._state.book.find(rollout_id, attempt) is not None

    def pause(self) -> None:
        """Holds requests that have not begun sampling, until `resume`; agents only see a slow answer."""
        self._on_loop(self._state.gate.clear)

    def resume(self) -> None:
        """Lets held requests go on."""
        self._on_loop(self._state.gate.set)

    def id_counts(self) -> Mapping[str, IdCount]:
        """Per engine name, over calls answered so far: how many had token ids. The trainer stops when a policy's has none."""
        return dict(self._state.id_counts)

    @property
    def late(self) -> LateResults:
        """Calls, spans and rewards that came for attempts which had been closed."""
        return self._state.late

    @property
    def orphan_calls(self) -> int:
        """Calls so far that named no rollout, the evaluator's own aside."""
        return self._state.orphan_calls

    def _on_loop(self, action: Callable[[], object]) -> None:
        """Has the server's loop run something; runs it here when there is no loop (any more)."""
        loop = self._server.loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(action)
                return
        except RuntimeError:  # it was closed in this moment
            pass
        action()

    async def _wind_down(self) -> None:
        """Stops requests in flight, waits until they are recorded, and closes the engines."""
        await self._state.wind_down()
        for engine in self._state.routes.engines:
            await engine.close()
