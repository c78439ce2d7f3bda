"""Sends requests in a closed loop: each connection sends the next when the last is answered.

Questions are lines of JSON: {"port", "path", "headers", "bodies" (a file with one in base64 on each line), "concurrency", "seconds"}. For
so many seconds bodies are sent in turn; without "seconds" each is sent once. The answer is {"requests", "sent", "seconds", "latencies":
{"p50", "p90", "p99"} in ms, "errors": the first bad answers}.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from wire import Messages

_SHOWN: Final = 300
"""Bytes of an error."""


class Connection(Messages):
    """One closed loop."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self._load = load
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first request."""
        super().connection_made(transport)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """The loop ends."""
        if not self.ended.done():
            self._load.errors.append(f"The connection was closed: {error}")
            self.ended.set_result(None)

    def message(self, head: bytes, body: bytes) -> None:
        """One answer."""
        now = time.perf_counter()
        if b" 20" not in head[:16]:
            self._load.errors.append((head + body)[:_SHOWN].decode("latin-1"))
        elif self._sent >= self._load.begins:
            self._load.latencies.append(now - self._sent)
        if now < self._load.ends:
            self._send()
        else:
            self._finish()

    def _send(self) -> None:
        if (request := next(self._load.requests, None)) is None:
            self._finish()
            return
        self._sent = time.perf_counter()
        self._load.sent += 1
        self.transport.write(request)

    def _finish(self) -> None:
        self.ended.set_result(None)
        self.transport.close()


class Load:
    """All closed loops of one question."""

    def __init__(self, question: dict[str, Any]) -> None:
        lines = [
            f"POST {question['path']} HTTP/1.1",
            f"host: 127.0.0.1:{question['port']}",
            *(f"{name}: {value}" for name, value in question["headers"].items()),
        ]
        head = "\r\n".join(lines).encode()
        bodies = [base64.b64decode(line) for line in Path(question["bodies"]).read_bytes().splitlines()]
        self.seconds: float | None = question.get("seconds")
        requests = [b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body) for body in bodies]
        self.requests = iter(requests) if self.seconds is None else cycle(requests)
        self.sent = 0
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self.port, self.concurrency = question["port"], question["concurrency"]

    async def run(self) -> dict[str, Any]:
        """Sends, and says what came of it. Of a time that is set, a tenth before it is not counted: connections are made then."""
        self.begins, self.ends = time.perf_counter(), math.inf
        if self.seconds is not None:
            self.begins, self.ends = self.begins + 0.1 * self.seconds, self.begins + 1.1 * self.seconds
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
            for _ in range(self.concurrency)
        ]
        await asyncio.gather(*(connection.ended for _, connection in made))
        ordered = sorted(self.latencies)
        return {
            "requests": len(ordered),
            "sent": self.sent,
            "seconds": time.perf_counter() - self.begins,
            "latencies": {f"p{p}": 1000 * ordered[len(ordered) * p // 100] for p in (50, 90, 99)} if ordered else {},
            "errors": self.errors[:3],
        }


def main() -> None:
    """Answers until nothing more is asked."""
    for line in sys.stdin:
        print(json.dumps({"answer": asyncio.run(Load(json.loads(line)).run())}), flush=True)


if __name__ == "__main__":
    main()
