"""What the gateway's request handlers share. Everything here is touched on the gateway's loop only, unless said otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from spangrad._latest import Latest
from spangrad.capture import LateResults
from spangrad.errors import StoreError
from spangrad.gateway._access import AccessBook, Entry
from spangrad.gateway._engine import EngineError
from spangrad.gateway._identity import Caller, Doorkeeper
from spangrad.gateway._landing import Landing
from spangrad.gateway._response_memory import ResponseMemory
from spangrad.gateway._routes import RouteTable
from spangrad.store import Store
from spangrad.transitions import Call, CallStatus, Choice

CLIENT_GONE: Final = 499
"""Status that says there is nobody left to answer (as nginx logs it)."""


MOST_ORPHAN_IDS: Final = 4096
ROLLOUT_CLOSED: Final = "rollout_closed"
"""Code of the error that calls of a closed attempt are answered with."""
SERVER_ERROR: Final = 500
"""The lowest status that says the server is at fault, not the request."""
NO_RETRY: Final = {"x-should-retry": "false"}
"""Tells the openai clients not to send the request again."""


@dataclass(frozen=True, slots=True)
class IdCount:
    """How many answered calls of an endpoint came with everything training needs."""

    calls: int
    with_ids: int
    """Had prompt ids, and for every choice sampled ids and as many logprobs."""


@dataclass(eq=False)
class GatewayState:
    """Shared by all handlers of one gateway."""

    store: Store
    routes: RouteTable
    book: AccessBook
    door: Doorkeeper
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while requests may begin sampling."""
    id_counts: dict[str, IdCount] = field(default_factory=dict)
    """Per engine name; replaced whole, so that any thread may read it."""
    late: LateResults = field(default_factory=LateResults)
    """What came for attempts that were closed."""
    orphan_calls: int = 0
    """Requests without a rollout so far, the evaluator's own aside."""
    orphan_ids: Latest[str] = field(default_factory=lambda: Latest(MOST_ORPHAN_IDS))
    """The latest call ids that clients gave to calls without a rollout. Of earlier ones the store knows."""
    orphan_responses: ResponseMemory = field(default_factory=ResponseMemory)
    """What responses without a rollout may go on from."""
    running: set[asyncio.Future[EngineError]] = field(default_factory=set)
    """One future per request in flight; a result stops the request and says why."""
    landing: Landing = field(default_factory=Landing)
    """Tells of calls that are on the disk."""
    idle: asyncio.Event | None = None
    """While the gateway stops: set when nothing is in flight any more."""

    def begin(self, caller: Caller) -> asyncio.Future[EngineError]:
        """Counts a request in; gives the future that stops it."""
        entry = caller.entry
        interrupt: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self.running.add(interrupt)
        if entry is not None:
            entry.calls += 1
            entry.running.add(interrupt)
        elif not caller.evaluator:
            self.orphan_calls += 1
        if self.idle is not None:
            stop(interrupt, stopping_error())
        return interrupt

    def end(self, entry: Entry | None, interrupt: asyncio.Future[EngineError]) -> None:
        """Counts a request out, once it has been recorded; doing it again is harmless."""
        self.running.discard(interrupt)
        if entry is not None:
            entry.running.discard(interrupt)
            settle(entry)
        if self.idle is not None and not self.running:
            self.idle.set()

    async def wind_down(self) -> None:
        """Stops what is in flight and waits until it has been recorded."""
        self.idle = asyncio.Event()
        for interrupt in list(self.running):
            stop(interrupt, stopping_error())
        if self.running:
            await self.idle.wait()

    async def record(self, call: Call, entry: Entry | None) -> None:
        """Writes a call; when this returns it is on the disk.

        Raises:
            EngineError: 500, the store cannot be written.
        """
        try:
            # A server that gives up on a request cancels the waiting, not the write.
            await self.landing.of(self.store.submit_call(call))
        except StoreError as error:
            raise EngineError(
                f"The call could not be recorded: {error.what}", cure=error.cure, status=500, headers=NO_RETRY
            ) from error
        if call.status is CallStatus.OK:
            if entry is not None:
                entry.answered += 1
                entry.sampled += any(map(_was_sampled, call.choices))
            count = self.id_counts.get(call.endpoint, IdCount(0, 0))
            self.id_counts[call.endpoint] = IdCount(count.calls + 1, count.with_ids + _has_ids(call))

    def close(self, entry: Entry, *, final: bool = False) -> None:
        """Closes an attempt: stops calls in flight. With `final` it takes no reward any more either."""
        if not entry.closed:
            entry.closed = True
            self.book.retire(entry)
        entry.final = entry.final or final
        entry.call_ids.clear()
        entry.responses.clear()
        entry.branches.close()
        for interrupt in list(entry.running):
            stop(interrupt, closed_error(entry.access.rollout_id, entry.access.attempt))
        settle(entry)


def stopping_error() -> EngineError:
    """What calls are answered while the gateway stops."""
    return EngineError("The gateway is stopping", status=503, headers=NO_RETRY)


def closed_error(rollout_id: str, attempt: int) -> EngineError:
    """What calls of a closed attempt are answered."""
    return EngineError(
        f"Attempt {attempt} of rollout {rollout_id!r} is closed",
        status=409,
        code=ROLLOUT_CLOSED,
        headers=NO_RETRY,
    )


def stop(interrupt: asyncio.Future[EngineError], why: EngineError) -> None:
    """Stops a request in flight, unless that has happened already."""
    if not interrupt.done():
        interrupt.set_result(why)


def settle(entry: Entry) -> None:
    """Tells whoever waits for a closed attempt once nothing of it is in flight."""
    if entry.closed and not entry.running:
        while entry.waiting:  # others may add to it meanwhile
            future = entry.waiting.pop()
            if future.set_running_or_notify_cancel():
                future.set_result(entry.tally)


def _was_sampled(choice: Choice) -> bool:
    """Whether a token was sampled for the choice; where no ids are known, its message tells."""
    told = (value for key, value in choice.message.items() if key != "role")
    return bool(choice.token_ids) or any(told)


def _has_ids(call: Call) -> bool:
    """Whether a call came with everything training needs."""
    return call.prompt_ids is not None and all(
        choice.token_ids is not None and choice.logprobs is not None and len(choice.logprobs) == len(choice.token_ids)
        for choice in call.choices
    )
