"""What to install when AutoGen is missing or not as expected. Imports no AutoGen."""

from __future__ import annotations

from importlib.metadata import requires


def cure() -> str:
    """The pip line for a supported AutoGen, from our own metadata."""
    wanted = next(
        (line for line in requires("spangrad-autogen") or () if line.startswith("autogen-core")), "autogen-core"
    )
    return f'pip install "{wanted}", or update spangrad-autogen'
