"""The `spangrad` command: thin typer commands over the other rooms."""

from spangrad.cli import _extensions, _inspect, _run, _train  # noqa: F401  (importing them registers their commands)
from spangrad.cli._main import app, main

__all__ = ["app", "main"]
