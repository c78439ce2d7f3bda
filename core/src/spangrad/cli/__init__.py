"""The `spangrad` command: thin typer commands over the other rooms."""

from spangrad.cli import _extensions, _gateway, _inspect, _run, _train  # noqa: F401  (importing registers commands)
from spangrad.cli._main import app, main

__all__ = ["app", "main"]
