"""Where a server listens, settled before it does."""

from __future__ import annotations

import errno
import socket
import weakref
from typing import Final

from spangrad.errors import GatewayError

_BACKLOG: Final = 2048
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to
"""Addresses one can listen on but not call, and what to call instead."""


class Address:
    """An address of this machine that a server is going to listen on.

    Reserved early, its port is known, and nobody else's, while the server is still being made ready; until that listens,
    connections are refused.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._bound: socket.socket | None = None
        self._release: weakref.finalize[[], Address] | None = None

    @property
    def base_url(self) -> str:
        """Root URL without a path, such as `http://127.0.0.1:8123`; its port is the one asked for until it is reserved."""
        host = _WILDCARDS.get(self._host, self._host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    def reserve(self) -> None:
        """Binds a socket to it, which is kept for `listen`, or closed with this object. Doing it again is harmless.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        if self._bound is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY on accepted connections; without it, every answer whose head and body
        # leave in two packets waits 40 ms for the client's delayed acknowledgement.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, self._port))
        except (OSError, OverflowError) as error:
            bound.close()
            raise self._unusable(error) from error
        self._port = bound.getsockname()[1]
        self._bound = bound
        self._release = weakref.finalize(self, bound.close)

    def listen(self) -> socket.socket:
        """The listening socket, which is the caller's to close; after that the same port can be listened on anew.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        self.reserve()
        bound, release = self._bound, self._release
        if bound is None or release is None:
            raise AssertionError("it has just been reserved")
        try:
            bound.listen(_BACKLOG)
        except OSError as error:  # another process reserved the same port, and was the first to listen
            raise self._unusable(error) from error
        release.detach()
        self._bound = self._release = None
        return bound

    def _unusable(self, error: Exception) -> GatewayError:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return GatewayError(
                f"Port {self._port} on {self._host} is in use",
                cure="Stop the program that uses it, or choose another port: `--port 0` takes any free one",
            )
        return GatewayError(
            f"Cannot listen on {self._host}:{self._port}: {error}",
            cure="Choose an address of this machine and a port from 1024 to 65535",
        )
