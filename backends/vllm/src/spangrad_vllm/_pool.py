"""Servers that draw with the same weights: kept alive, and given answers to draw.

An answer that a server breaks off, or that is under way when the weights change, goes on from its tokens: at another server, or with
the new weights, computed anew up to where it was. Nobody who reads it sees more than a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from spangrad.errors import BackendError
from spangrad_vllm._control import RefusedError
from spangrad_vllm._prefixes import Prefixes
from spangrad_vllm._server import Address, Seat, Server
from spangrad_vllm._source import Source, until_healthy
from spangrad_vllm._together import together
from spangrad_vllm._weights import Weights

_log = logging.getLogger("spangrad.vllm")

_HEALTH_SECONDS: Final = 5.0
"""Between two looks at a server's health."""
_DOUBT_SECONDS: Final = 0.5
"""The same, while it is doubted."""
_MOST_MISSES: Final = 3
"""A server that so often in turn does not say that it is healthy is given up."""
_MOST_DEATHS: Final = 3
"""Servers may be lost so often without a whole answer in between."""


class Pool:
    """Keeps servers and gives them out. Belongs to one event loop.

    Args:
        source: where they come from.
        weights: what they draw with.
        make: a server of the place of that number.
        size: how many there are.
        start_timeout: seconds until a server must answer.
    """

    def __init__(
        self,
        source: Source,
        weights: Weights,
        make: Callable[[int, Address], Server],
        *,
        size: int,
        start_timeout: float,
    ) -> None:
        self._source = source
        self._weights = weights
        self._make = make
        self._size = size
        self._start_timeout = start_timeout
        self._servers: dict[int, Server] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._giving_up: asyncio.Future[None] | None = None  # the loop itself keeps no task alive
        self._prefixes = Prefixes()
        self._changing = asyncio.Lock()
        """Held while weights change, and while a new server is given the present ones."""
        self._news = asyncio.Condition()
        """Told whenever one of the following changes, or a server's `up` or `doubted`."""
        self._holding = False
        self._ended: BackendError | None = None
        """Why nothing will be drawn any more."""
        self._deaths = 0

    @property
    def urls(self) -> list[str]:
        """Of the servers."""
        return [server.url for _, server in sorted(self._servers.items())]

    def present(self, policy: str | None) -> int:
        """Version of the policy's weights."""
        return self._weights.present(policy)[1]

    async def start(self) -> None:
        """Returns when all servers draw.

        Raises:
            BackendError: one does not start, or cannot be used.
        """
        await together([self._bring_up(number) for number in range(self._size)])
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._size)]
        for keeper in self._keepers:
            keeper.add_done_callback(self._unkept)

    async def take(self, policy: str, folder: Path, version: int) -> None:
        """Draws the policy's answers with other weights.

        Raises:
            BackendError: a server refuses them, or there is none any more.
        """
        async with self._changing:
            if self._ended is not None:
                raise self._ended
            await self._weights.exchange(self, policy, folder, version)

    @asynccontextmanager
    async def seat(self, policy: str | None, prompt: Sequence[int]) -> AsyncIterator[Seat]:
        """A place to draw an answer; waits while weights change or no server is up.

        Raises:
            BackendError: there will be none.
        """
        async with self._news:
            await self._news.wait_for(lambda: self._ended is not None or (not self._holding and self._free()))
            if self._ended is not None:
                raise self._ended
            loads = {server.number: len(server.seats) for server in self._free()}
            server = self._servers[self._prefixes.choose(prompt, loads)]
            seat = Seat(server, policy, *self._weights.present(policy))
            server.seats.add(seat)
        try:
            yield seat
        finally:
            server.seats.discard(seat)

    async def read(self, seat: Seat, answer: Callable[[Seat], Awaitable[None]]) -> bool:
        """Draws at a seat; False where the answer has to go on elsewhere.

        Raises:
            EngineError: the server failed.
        """
        task = seat.task = asyncio.ensure_future(answer(seat))
        try:
            await asyncio.wait([task])
        finally:
            if not task.done():  # nobody wants the answer any more
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return False
        task.result()
        self._deaths = 0
        return True

    def doubt(self, server: Server) -> None:
        """An answer broke off there: it gets no more before its health has been seen to."""
        server.doubted.set()

    async def each(self, do: Callable[[Server], Awaitable[None]]) -> None:
        """See `Crew.each`."""
        servers = [server for server in self._servers.values() if server.up]
        results = await asyncio.gather(*(do(server) for server in servers), return_exceptions=True)
        refusals = []
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, BackendError):
                _log.warning("The vLLM server %s did not take new weights: %s", server.url, result)
                server.up = False  # its keeper sees to the rest
                server.doubted.set()
                refusals += [result] if isinstance(result, RefusedError) else []
            elif result is not None:
                raise result
        if refusals:
            raise refusals[0]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """See `Crew.held`."""
        self._holding = True
        try:
            await self._interrupt(lambda _: True)
            yield
        finally:
            self._holding = False
            await self._tell()

    async def move(self, policy: str) -> None:
        """See `Crew.move`."""
        await self._interrupt(lambda seat: seat.policy == policy)

    async def close(self, why: BackendError | None = None) -> None:
        """Ends the servers that are ours; answers under way fail. Closing twice is harmless."""
        await self._give_up(why or BackendError("The vLLM servers have been closed"))
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        await asyncio.gather(*(server.end() for server in self._servers.values()))

    def _free(self) -> list[Server]:
        return [server for server in self._servers.values() if server.up and not server.doubted.is_set()]

    async def _bring_up(self, number: int) -> None:
        """Opens a server for the place and lets it draw.

        Raises:
            BackendError: it does not start, or cannot be used.
        """
        while True:
            opening = self._weights.opening
            address, opened = await self._source.open(number, opening)
            server = self._servers[number] = self._make(number, address)
            try:
                await until_healthy(server, self._start_timeout)
                await self._source.greet(server)
                async with self._changing:
                    await self._weights.bring(server, opened)
                    server.up = True
            except BackendError:
                if opening == self._weights.opening or self._ended is not None:
                    raise
                await server.end()  # weights have changed meanwhile, and those it was reading are gone
                continue
            await self._tell()
            return

    async def _keep(self, number: int) -> None:
        """Replaces the place's server whenever it is lost."""
        while self._ended is None:
            server = self._servers[number]
            why = await self._lost(server)
            _log.warning("The vLLM server %s is lost: %s", server.url, why)
            server.up = False
            await self._interrupt(server.seats.__contains__)
            lines = "" if server.process is None else server.process.last_lines()
            await server.end()
            self._prefixes.forget(number)
            self._deaths += 1
            if self._deaths > _MOST_DEATHS:
                what = f"vLLM servers were lost {self._deaths} times without a whole answer in between; the last one: {why}"
                await self._give_up(BackendError(what, cure=f"See why{lines}"))
                return
            try:
                await self._bring_up(number)
            except BackendError as error:
                await self._give_up(
                    BackendError(f"A lost vLLM server cannot be replaced: {error.what}", cure=error.cure)
                )
                return
            _log.warning("The vLLM server %s took its place", self._servers[number].url)

    def _unkept(self, keeper: asyncio.Task[None]) -> None:
        """Nobody waits for a server that is looked after no more, by whatever fault."""
        if keeper.cancelled() or (error := keeper.exception()) is None:
            return
        why = BackendError(f"A vLLM server cannot be looked after any more: {error!r}")
        why.__cause__ = error
        self._giving_up = asyncio.ensure_future(self._give_up(why))

    async def _lost(self, server: Server) -> str:
        """Returns when the server is no longer well, and says how."""
        misses = 0
        while True:
            with suppress(TimeoutError):
                if not misses:
                    await asyncio.wait_for(server.doubted.wait(), _HEALTH_SECONDS)
            if server.process is not None and server.process.end is not None:
                return f"its process ended {server.process.how_it_ended()}"
            if not server.up:
                return "it did not take new weights"
            if await server.control.healthy():
                misses = 0
                server.doubted.clear()
                await self._tell()
                continue
            misses += 1
            if misses == _MOST_MISSES:
                return "it does not answer"
            await asyncio.sleep(_DOUBT_SECONDS)

    async def _interrupt(self, which: Callable[[Seat], bool]) -> None:
        """Ends the reading of some seats, so that their answers take others."""
        seats = [seat for server in self._servers.values() for seat in server.seats if which(seat)]
        tasks = [seat.task for seat in seats if seat.task is not None and not seat.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _give_up(self, why: BackendError) -> None:
        """Nothing is drawn any more."""
        self._ended = self._ended or why
        await self._interrupt(lambda _: True)
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
