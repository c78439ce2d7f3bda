"""A server's process: started with a guard (`_guard`) that ends it with us, its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from spangrad_vllm._command import Command

_GUARD: Final = Path(__file__).with_name("_guard.py")
_PATIENCE: Final = 20.0
"""Seconds the guard gets to end its server; longer than it gives the server."""
_TAIL_LINES: Final = 25


class ServerProcess:
    """Starts a server.

    Args:
        command: of the server.
        log: file for what it prints; added to.
        handover: folder that is removed with the server if this process dies.
    """

    def __init__(self, command: Command, *, log: Path, handover: Path) -> None:
        self._log = log
        self._ending = threading.Lock()
        """Guards the pipe's end."""
        reading, self._life = os.pipe()
        self._life_is_open = True
        words: Sequence[str] = (sys.executable, str(_GUARD), str(reading), str(handover), *command.words)
        try:
            with log.open("ab") as output:
                # In a session of its own, so that Ctrl-C in a terminal reaches us alone, and the group holds the server's processes.
                self._process = subprocess.Popen(  # noqa: S603 - ours
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=log.parent,  # where no folder is taken for a package
                    env={**os.environ, **command.environment},
                    pass_fds=[reading],
                    start_new_session=True,
                )
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Of the guard, which is the number of the group that all of the server's processes are in."""
        return self._process.pid

    @property
    def end(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        signalled = -code if code < 0 else code - 128
        return f"killed by signal {signalled}" if signalled > 0 else f"exit status {code}"

    def last_lines(self) -> str:
        """What it printed last."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            return f"(its log cannot be read: {error})"
        return "\n".join(["", f"The last lines of {self._log}:", *lines[-_TAIL_LINES:]])

    def stop(self) -> None:
        """Ends all of its processes; blocks until they have. Stopping twice is harmless."""
        with self._ending:
            if self._life_is_open:
                self._life_is_open = False
                with suppress(BrokenPipeError):  # it has ended already
                    os.write(self._life, b"e")
                os.close(self._life)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        with suppress(ProcessLookupError):  # the usual case: none is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
