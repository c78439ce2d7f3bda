"""A server's process: started with a guard (`_guard`) that ends it with us, its output in a file."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from spangrad_vllm._command import Command

_GUARD: Final = Path(__file__).with_name("_guard.py")
_PATIENCE: Final = 20.0
"""Seconds the guard gets to end its server; longer than it gives the server."""
_TAIL_LINES: Final = 25
_CAUSE: Final = re.compile(
    r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?((?!RuntimeError: Engine core )[\w.]+(?:Error|Exception): .+|\S+: error: .+)$",
    re.MULTILINE,
)
"""The end of a traceback, whoever of the server's processes printed it, or an option refused. vLLM prints the cause first, then
many lines of how another process took it."""


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
                self._begin = output.tell()
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

    def how_it_ended(self) -> str:
        """The same with the cause that its log gives, if any."""
        causes = _CAUSE.findall(self._printed())
        return f"({self.end}): {causes[-1]}" if causes else f"({self.end})"

    def last_lines(self) -> str:
        """What it printed last."""
        return "\n".join(["", f"The last lines of {self._log}:", *self._printed().splitlines()[-_TAIL_LINES:]])

    def _printed(self) -> str:
        """Its log, without what servers before it have left there."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._begin)
                return file.read().decode("utf-8", errors="replace")
        except OSError as error:
            return f"(its log cannot be read: {error})"

    def stop(self) -> None:
        """Ends all of its processes; blocks until they have. Stopping twice is harmless."""
        with ExitStack() as watched, self._ending:
            members = [watched.enter_context(_opened(pid)) for pid in _members(self._process.pid)]
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
            # What has been killed has still to give back its memory, which the server that takes its place wants.
            for member in filter(None, members):
                select.select([member], [], [], _PATIENCE)


def _members(group: int) -> list[int]:
    """The processes of a group, where the system tells (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            _state, _parent, its_group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(its_group) == group:
                found.append(int(stat.parent.name))
    return found


@contextmanager
def _opened(pid: int) -> Iterator[int | None]:
    """A descriptor that can be read once the process has ended; None where it has already."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
