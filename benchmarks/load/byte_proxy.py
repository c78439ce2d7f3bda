"""The least a proxy can do: bytes from one socket to another, nothing looked at, nothing kept.

Argument: the upstream's port. Prints its own as {"answer": port} and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys


class Side(asyncio.Protocol):
    """One of the two connections of a client."""

    def __init__(self, other: Side | None = None) -> None:
        self.other = other
        self.waiting: list[bytes] = []
        """What came before the other connection was there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Goes on with what waits for this connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream
        self.transport = transport
        if self.other is None:
            self.connecting = asyncio.ensure_future(
                asyncio.get_running_loop().create_connection(lambda: Side(self), "127.0.0.1", int(sys.argv[1]))
            )
            return
        for data in self.other.waiting:
            transport.write(data)
        self.other.other = self

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Hangs up on the other side too."""
        if self.other is not None:
            self.other.transport.close()


async def main() -> None:
    """Serves."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Side, "127.0.0.1", 0)
    print(json.dumps({"answer": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
