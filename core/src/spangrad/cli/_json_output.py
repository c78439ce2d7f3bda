"""--json: standard output holds one JSON document and nothing else.

Agents, reward and task functions, plug-ins and the programs they start may print. With --json all that goes to standard error,
from when the options are read until the process ends: a thread that was left behind may print late.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

from spangrad.errors import SpangradError

_STDOUT: Final = 1
_reserved: list[TextIO] = []
"""The real standard output, once it is kept for the document."""


def reserve_stdout(as_json: bool) -> bool:
    """The callback of --json: keeps standard output for the document, and sends what others print to standard error."""
    if as_json and not _reserved:
        _reserved.append(_taken())
        sys.stdout = sys.stderr
    return as_json


def print_json(value: Any) -> None:
    """One JSON document on standard output.

    Raises:
        SpangradError: standard output takes nothing, such as a file on a full disk.
    """
    out = _reserved[-1] if _reserved else sys.stdout
    try:
        out.write(json.dumps(value, indent=2) + "\n")
        out.flush()
    except BrokenPipeError:  # whoever was reading has seen enough
        raise
    except OSError as error:
        raise SpangradError(f"Standard output cannot be written: {error.strerror or error}") from error


def _taken() -> TextIO:
    """A stream of its own to where standard output leads; what writes to descriptor 1, in C or a child, gets standard error."""
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started this
        return sys.stdout or Path(os.devnull).open("w", encoding="utf-8")
    sys.stdout.flush()
    try:
        if sys.stdout.fileno() != _STDOUT:
            return sys.stdout
        real = os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), _STDOUT)
    except (OSError, io.UnsupportedOperation):  # inside another program standard output may be no file at all
        return sys.stdout
    return real
