"""The command's entry point, and what every command shares: options, JSON output and how errors end the program.

Commands import what they need when they run, so that `spangrad --help` and `spangrad plugins` answer at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
INTERRUPTED = 130
"""Exit status of a run that was stopped by Ctrl-C and can be resumed."""


def main() -> None:
    """Runs the command line; a SpangradError ends it with its message and exit status, never with a traceback."""
    try:
        app()
    except SpangradError as error:
        complain(error)
        sys.exit(error.exit_status)


def complain(error: SpangradError) -> None:
    """Prints an error as people read it: what happened, then what to do."""
    typer.echo(f"error: {error.what}", err=True)
    if error.cure:
        typer.echo(f"  -> {error.cure}", err=True)
