"""The requests that call a model."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive, Scope, Send

from spangrad.gateway._engine import EngineError
from spangrad.gateway._errors import error_body, send_json
from spangrad.gateway._exchange import Exchange
from spangrad.gateway._identity import read_headers
from spangrad.gateway._state import CLIENT_GONE, GatewayState, stop
from spangrad.gateway._wire import Dialect

_LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes; a conversation with images in it may be large."""


class ModelEndpoint:
    """The ASGI application behind the routes of one of OpenAI's APIs.

    Args:
        state: the gateway's.
        dialect: the API.
    """

    def __init__(self, state: GatewayState, dialect: Dialect) -> None:
        self._state = state
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        headers = read_headers(scope)
        try:
            caller = self._state.door.identify(scope, headers)
            data = await read_body(receive)
        except EngineError as error:
            if error.status != CLIENT_GONE:
                await send_json(send, error_body(error), status=error.status, headers=error.headers)
            return
        interrupt = self._state.begin(caller)
        watch = asyncio.create_task(_watch(receive, interrupt))
        try:
            exchange = Exchange(
                self._state, self._dialect, entry=caller.entry, headers=headers, send=send, interrupt=interrupt
            )
            await exchange.run(data)
        finally:
            watch.cancel()
            self._state.end(caller.entry, interrupt)


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        EngineError: 413, it is too large; 499, the client went away while sending it.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise EngineError("The client went away while sending its request", status=CLIENT_GONE)
        part = message.get("body", b"")
        size += len(part)
        if size > _LARGEST_BODY:
            raise EngineError(f"The request's body is larger than {_LARGEST_BODY} bytes", status=413)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _watch(receive: Receive, interrupt: asyncio.Future[EngineError]) -> None:
    """Stops the call when its client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stop(interrupt, EngineError("The agent went away before it had the whole answer", status=CLIENT_GONE))
