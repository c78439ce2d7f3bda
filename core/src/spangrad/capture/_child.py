"""What a process that the runner starts for a rollout finds in its environment.

Besides the rollout's identity, PYTHONPATH begins with a folder whose `sitecustomize` lets any Python program join the rollout
by itself. For that it has to know which imports to watch for; asking every plug-in takes longer than many a program runs, so
this process tells, and a child of the same Python environment believes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from spangrad.capture._environment import scope_to_environment
from spangrad.capture._scope import RolloutScope
from spangrad.errors import SpangradError

STARTUP_FOLDER: Final = str(Path(__file__).parent / "_startup")
"""Holds nothing but the `sitecustomize` of child processes."""
INTEGRATIONS_VARIABLE: Final = "SPANGRAD_INTEGRATIONS"
"""`PLUGIN=FRAMEWORK,...@PREFIX`: the integrations of the Python environment at PREFIX."""
_SELECTION: Final = ("SPANGRAD_PLUGINS", "SPANGRAD_DISABLED_PLUGINS", "SPANGRAD_STRICT")


def child_environment(scope: RolloutScope, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that make a child process run as this rollout, besides those it inherits.

    Any OpenAI client in it calls the rollout's own URL with the rollout's own key; a Python program in whose environment spangrad
    is installed also has its spans recorded (unless Python is started with -I, -E or -S, which skip what is done here).

    Args:
        scope: the rollout.
        environ: what the process inherits; `os.environ` by default.
    """
    environ = os.environ if environ is None else environ
    before = environ.get(
        "PYTHONPATH"
    )  # an empty entry of it means the current folder, but an empty whole means nothing
    others = [entry for entry in before.split(os.pathsep) if entry != STARTUP_FOLDER] if before else []
    variables = {**scope_to_environment(scope), "PYTHONPATH": os.pathsep.join([STARTUP_FOLDER, *others])}
    told = _integrations(tuple((name, environ[name]) for name in _SELECTION if name in environ))
    # Where the plug-ins are in disorder nothing is told: the child finds out and says so.
    variables[INTEGRATIONS_VARIABLE] = "" if told is None else f"{told}@{sys.prefix}"
    return variables


def plugins_told(environ: Mapping[str, str]) -> frozenset[str] | None:
    """The plug-ins with integrations, as told to this process; None when nothing was, or to another Python environment's."""
    pairs, found, prefix = environ.get(INTEGRATIONS_VARIABLE, "").partition("@")
    if not found or prefix != sys.prefix:
        return None
    return frozenset(pair.partition("=")[0] for pair in pairs.split(",") if pair)


@lru_cache(maxsize=8)
def _integrations(selection: tuple[tuple[str, str], ...]) -> str | None:
    from spangrad.plugins import load_plugins  # noqa: PLC0415 - the child needs only what is above

    try:
        plugins = load_plugins(dict(selection), builtin=False, quiet=True)
    except SpangradError:
        return None
    return ",".join(f"{row.plugin}={row.value.framework}" for row in plugins.integrations)
