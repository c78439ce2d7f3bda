"""The command's entry point, and what every command shares: options, JSON output and how errors end the program.

Commands import what they need when they run, so that `spangrad --help` and `spangrad plugins` answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from spangrad.cli._json_output import reserve_stdout
from spangrad.errors import SpangradError

app = typer.Typer(
    name="spangrad",
    help="Trains the LLM agents people already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigArgument = Annotated[Path, typer.Argument(help="The train.toml.", show_default=False)]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: table.key=value.", show_default=False)
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that runs are kept in.")]
PortOption = Annotated[int, typer.Option("--port", help="Port of the gateway; 0 takes a free one.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="A run's folder; the latest one of the folder --runs if left out.", show_default=False),
]
JsonOption = Annotated[
    bool, typer.Option("--json", callback=reserve_stdout, help="Print one JSON object on standard output.")
]

DEFAULT_RUNS = Path("runs")
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
"""What a write fails with when there is no room, or nobody to read it."""
INTERRUPTED = 130
"""Exit status of a run that was stopped by Ctrl-C and can be resumed."""


def main() -> None:
    """Runs the command line; a SpangradError ends it with its message and exit status, never with a traceback.

    So does a standard output that cannot be written, such as a file on a full disk.
    """
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, and not when the interpreter ends, where nothing can be said about it
    except SpangradError as error:
        complain(error)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:  # files of ours say so by errors of ours
            raise
        _give_up(sys.stdout)
        if error.errno != errno.EPIPE:  # whoever was reading has seen enough
            complain(SpangradError(f"Standard output cannot be written: {error.strerror or error}"))
        sys.exit(SpangradError.exit_status)


def _give_up(stream: TextIO) -> None:
    """Sends what a stream still holds nowhere, so that nothing more is said of it when the interpreter ends."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def complain(error: SpangradError) -> None:
    """Prints an error as people read it: what happened, then what to do."""
    typer.echo(f"error: {error.what}", err=True)
    if error.cure:
        typer.echo(f"  -> {error.cure}", err=True)
