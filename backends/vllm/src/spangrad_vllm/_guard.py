"""Runs a server as a child and ends all of its processes when told to, or when whoever started this one has died.

    python _guard.py FD HANDOVER COMMAND ...

A script of the standard library alone, started in a session of its own: a terminal's Ctrl-C does not reach it, and the server's
processes are one group that can be ended as a whole. FD is the reading end of a pipe. A byte in it is the order to end; its end
without one means that the other process is dead, and then nobody else will remove the folder HANDOVER.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

_PATIENCE: Final = 10.0
"""Seconds the server gets to end by itself."""


def main() -> None:
    """Exits with the server's status, or is killed with the group."""
    life, handover, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which goes to the whole group
    server = subprocess.Popen(command, preexec_fn=_default_sigterm)  # noqa: S603, PLW1509 - ours; no threads yet
    ended, ending = os.pipe()
    threading.Thread(target=_await, args=(server, ending), daemon=True).start()
    ready, _, _ = select.select([life, ended], [], [])
    if life in ready:
        told = os.read(life, 1)
        os.killpg(0, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # it is killed below
            server.wait(_PATIENCE)
        if not told:
            shutil.rmtree(handover, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # processes that it left behind, and this one
    sys.exit(server.wait() if server.wait() >= 0 else 128 - server.wait())


def _default_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _await(server: subprocess.Popen[bytes], ending: int) -> None:
    server.wait()
    os.write(ending, b".")


if __name__ == "__main__":
    main()
