"""HTTP/1.1 as far as the benchmark's own client, upstream and proxy need it: messages with a length, or in chunks."""

from __future__ import annotations

import asyncio
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_CHUNKED: Final = b"transfer-encoding: chunked"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Messages(asyncio.Protocol):
    """Cuts what comes over a connection into whole HTTP messages; `message` is called for each with its head and body.

    A body in chunks is handed on as it came.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Takes bytes in, and hands on the messages that are whole."""
        self._buffer += data
        while (end := self._message_end()) is not None:
            head_end = self._buffer.index(_HEAD_END) + len(_HEAD_END)
            head, body = bytes(self._buffer[:head_end]), bytes(self._buffer[head_end:end])
            del self._buffer[:end]
            self.message(head, body)

    def message(self, head: bytes, body: bytes) -> None:
        """One whole message."""
        raise NotImplementedError

    def _message_end(self) -> int | None:
        """Where the first message ends; None if it is not all there."""
        found = self._buffer.find(_HEAD_END)
        if found < 0:
            return None
        head, start = bytes(self._buffer[:found]).lower(), found + len(_HEAD_END)
        if _CHUNKED in head:
            last = self._buffer.find(_LAST_CHUNK, start)
            return None if last < 0 else last + len(_LAST_CHUNK)
        at = head.find(_LENGTH)
        length = 0 if at < 0 else int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
        return start + length if len(self._buffer) >= start + length else None
