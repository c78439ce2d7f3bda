"""Servers of a benchmark: each a process of its own, ended with the benchmark."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import peers

LOAD: Final = Path(__file__).parent / "load"
"""Client, upstream and proxy, which all sides share."""
_PATIENCE: Final = 120.0
"""Seconds for a peer to be ready."""


def ours(script: str, *arguments: str) -> peers.Conversation:
    """A script of `load/`, in this Python."""
    return peers.Conversation(None, script, *arguments, folder=LOAD)


def processor_seconds(pid: int) -> float:
    """What a process has had of the processor so far, with its threads and with the children that have ended. Needs Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Load:
    """The client, and a folder for what it sends."""

    def __init__(self, client: peers.Conversation, folder: Path) -> None:
        self._client, self._file = client, folder / "bodies"

    def ask(  # noqa: PLR0917 - what a load is
        self,
        bodies: Sequence[bytes],
        port: int,
        path: str,
        headers: Mapping[str, str],
        connections: int,
        seconds: float | None,
    ) -> Any:
        """Sends bodies in turn for so many seconds, or each once, and says how it went (see `load/client.py`)."""
        self._file.write_bytes(b"".join(base64.b64encode(body) + b"\n" for body in bodies))
        return self._client.ask(
            port=port, path=path, headers=headers, bodies=str(self._file), concurrency=connections, seconds=seconds
        )


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A peer's server, started by its own command. A context manager, entered once it answers.

    Args:
        command: starts it.
        health: URL that answers without an error when it is ready.
        log: file for what it prints.
        folder: where it runs.
        environment: further variables.
    """

    def __init__(
        self, command: Sequence[str], health: str, log: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._command, self._health, self._log, self._folder = command, health, log, folder
        self._environment = peers.environment(**environment)

    def __enter__(self) -> Self:
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._command, stdout=log, stderr=log, cwd=self._folder, env=self._environment
            )
        until = time.monotonic() + _PATIENCE
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self._end()
                sys.exit(f"{self._command[0]} does not start:\n{self._log.read_text(encoding='utf-8')[-3000:]}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._health, timeout=5):  # noqa: S310 - this machine's own
                return True
        except OSError:
            return False

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
