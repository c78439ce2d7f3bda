"""An HTTP server in its own thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from spangrad.gateway._address import Address

_KEEP_ALIVE_SECONDS: Final = 600
"""Longer than clients keep idle connections, so that none is closed under a request just being sent."""
_SHUTDOWN_SECONDS: Final = 5
"""What clients get to read the rest of their responses when the server stops."""


class ServerThread:
    """Serves an ASGI application until stopped.

    Args:
        app: what to serve.
        address: where it listens.
        name: of the thread.
    """

    def __init__(self, app: ASGIApp, *, address: Address, name: str) -> None:
        self._app = app
        self._address = address
        self._name = name
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The server's event loop while it runs."""
        return self._loop

    def start(self) -> None:
        """Listens; returns when requests are answered.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        bound = self._address.listen()
        # ws="none", lifespan="off": neither is used. Logging stays with the program that embeds the server.
        config = uvicorn.Config(
            self._app,
            http="httptools",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, args=(self._server, bound), name=self._name, daemon=True)
        self._thread.start()
        self._server.ready.wait()

    def stop(self) -> None:
        """Stops listening, lets responses in flight end, and waits for the thread."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = self._loop = None

    def _serve(self, server: _Server, bound: socket.socket) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve(sockets=[bound])

        try:
            asyncio.run(main())
        finally:
            server.ready.set()
            bound.close()


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
