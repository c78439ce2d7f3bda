"""An HTTP server in its own thread with its own event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from spangrad.errors import GatewayError

_KEEP_ALIVE_SECONDS: Final = 600
"""Longer than clients keep idle connections, so that none is closed under a request just being sent."""
_SHUTDOWN_SECONDS: Final = 5
"""What clients get to read the rest of their responses when the server stops."""
_BACKLOG: Final = 2048


class ServerThread:
    """Serves an ASGI application until stopped.

    Args:
        app: what to serve.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        name: of the thread.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, name: str) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._name = name
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The server's event loop while it runs."""
        return self._loop

    @property
    def port(self) -> int:
        """The port it listens on; the one asked for until it is started."""
        return self._port

    def start(self) -> None:
        """Listens; returns when requests are answered.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        bound = self._bind()
        self._port = bound.getsockname()[1]
        # ws="none", lifespan="off": neither is used. Logging stays with the program that embeds the server.
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            backlog=_BACKLOG,
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

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY on accepted connections; without it, every answer whose head and body
        # leave in two packets waits 40 ms for the client's delayed acknowledgement.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, self._port))
        except (OSError, OverflowError) as error:
            bound.close()
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise GatewayError(
                    f"Port {self._port} on {self._host} is in use",
                    cure="Stop the program that uses it, or choose another port: `--port 0` takes any free one",
                ) from error
            raise GatewayError(
                f"Cannot listen on {self._host}:{self._port}: {error}",
                cure="Choose an address of this machine and a port from 1024 to 65535",
            ) from error
        return bound


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
