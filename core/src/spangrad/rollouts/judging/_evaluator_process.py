"""One process of an evaluator, and the lines to and from it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, cast

from spangrad.errors import RewardError
from spangrad.rollouts._agents import CommandAgent

_TOLD: Final = 2000
"""Bytes of the process's own words that a message quotes, from the end."""
_LOOK: Final = 0.5
"""Seconds between looks at whether a silent process still runs: what it has started may keep its output open."""


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
    """A process that was started."""

    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def readable(self, *, wait: float = 0.0) -> bool:
        """Whether there is something to read, be it the end."""
        return bool(select.select([self.stdout], [], [], wait)[0])

    def chunk(self) -> bytes:
        """What there is to read; empty at the end."""
        return os.read(self.stdout.fileno(), 1 << 16)

    def kill(self) -> None:
        """Ends it and what it has started."""
        with suppress(ProcessLookupError, PermissionError):  # gone already; macOS says EPERM for a group of zombies
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> str:
        """Ends it and lets go of its files; says how it ended and the end of its standard error."""
        ended = self.process.poll() is not None
        self.kill()
        status = self.process.wait()
        with suppress(OSError):  # what was not written yet has nobody to read it
            self.stdin.close()
        self.stdout.close()
        with self.stderr as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TOLD))
            said = file.read().decode(errors="replace").strip()
        how = f"status {status}" if ended else "ended by spangrad"
        return f"{how}; {f'its standard error: {said}' if said else 'it wrote nothing to its standard error'}"


class EvaluatorProcess:
    """A process that is started when it is asked something and none is running.

    Args:
        command: what is run, and where.
        environ: its whole environment.
    """

    def __init__(self, command: CommandAgent, environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = dict(environ)
        self._who = f"The evaluator {command.name!r}"
        self._asking = threading.Lock()
        self._live: _Live | None = None
        self._unread = b""

    def ask(self, line: bytes, given_up: threading.Event) -> bytes:
        """Puts a question and waits for the line that answers it.

        A process that has answered before and ends without an answer to this one may have ended before it was asked, so the
        question is put to a new one.

        Args:
            line: the question.
            given_up: set, and followed by `kill`, when nobody waits for the answer any more.

        Raises:
            RewardError: the process cannot be started, ended without an answer, or has said something unasked.
        """
        with self._asking:
            while not given_up.is_set():
                live, new = self._running()
                with suppress(OSError):  # it has ended, as reading will tell
                    live.stdin.write(line)
                    live.stdin.flush()
                answer = self._answer(live, given_up)
                if answer is not None:
                    return answer
                how = self._close(live)
                if new:
                    raise RewardError(f"{self._who} ended without an answer ({how})")
            raise RewardError(f"{self._who} is not waited for any more")

    def kill(self) -> None:
        """Ends the process, so that whoever waits for its answer gets none."""
        if (live := self._live) is not None:
            live.kill()

    def end(self) -> None:
        """Ends the process and lets go of it; harmless when there is none."""
        self.kill()
        with self._asking:
            if self._live is not None:
                self._close(self._live)

    def _running(self) -> tuple[_Live, bool]:
        """The process, with nothing in its output that could be taken for an answer, and whether it is a new one.

        Raises:
            RewardError: there is something, or it cannot be started.
        """
        live = self._live
        if live is not None and live.readable():
            self._unread += live.chunk()
        if self._unread:
            said = self._unread[:_TOLD].decode(errors="replace")
            raise RewardError(
                f"{self._who} printed more than one line for a rollout: {said!r}",
                cure="Its standard output is for answers: print everything else to standard error",
            )
        if live is not None and live.readable():  # nothing was read, so this is its end
            self._close(live)
            live = None
        return (self._start(), True) if live is None else (live, False)

    def _start(self) -> _Live:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                self._command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self._command.folder,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            stderr.close()
            raise RewardError(f"{self._who} cannot be started: {error}") from error
        self._live = _Live(process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout), stderr)
        return self._live

    def _answer(self, live: _Live, given_up: threading.Event) -> bytes | None:
        """The next line; None if the process ends without one, or nobody waits any more."""
        while b"\n" not in self._unread:
            # Asked before looking, so that the last words of a process that has ended are read.
            ended = live.process.poll() is not None or given_up.is_set()
            if live.readable(wait=0.0 if ended else _LOOK):
                chunk = live.chunk()
                self._unread += chunk
                ended = not chunk
            if ended and b"\n" not in self._unread:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _close(self, live: _Live) -> str:
        self._live, self._unread = None, b""
        return live.close()
