"""A check command, in pytest's manner: it passes or it does not."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spangrad.errors import RewardError
from spangrad.rollouts._agents import CommandAgent
from spangrad.rollouts._command import run_command
from spangrad.rollouts.judging._source import FinishedRollout

TROUBLE: Final = frozenset({2, 3, 4, 5, 126, 127})
"""Exit statuses that say the check did not take place: pytest's interrupted, internal error, usage error and no tests, and the
shell's cannot execute and not found."""
_SIGNALLED: Final = 128
"""From here on a shell tells that a signal ended the command."""
_TOLD: Final = 2000
"""Characters of the command's own words that an error quotes, from the end."""


class Check:
    """Runs a command for each rollout: exit status 0 rewards it with 1, any other with 0, unless it means trouble.

    The command has the task as JSON on its standard input and in the file SPANGRAD_TASK_FILE, and the output in the file
    SPANGRAD_OUTPUT_FILE: text as it is, anything else as JSON.

    Args:
        command: what is run, and where.
        environ: what it inherits.
    """

    name = "check"

    def __init__(self, command: CommandAgent, environ: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environ = dict(os.environ if environ is None else environ)

    async def rewards(self, rollout: FinishedRollout, *, limit: float | None) -> Mapping[str, float]:
        """See `RewardSource`."""
        output = rollout.output_text()
        with tempfile.TemporaryDirectory(prefix="spangrad-check-") as folder:
            files = await asyncio.to_thread(_written, Path(folder), json.dumps(rollout.task), output)
            names = {"SPANGRAD_TASK_ID": rollout.task_id, "SPANGRAD_ROLLOUT_ID": rollout.rollout_id}
            variables = {**files, **names}
            try:
                ended = await run_command(self._command, rollout.task, variables, limit=limit, inherited=self._environ)
            except OSError as error:
                raise RewardError(f"The check {self._command.name!r} cannot be started: {error}") from error
        if ended.status is None:
            raise RewardError(f"The check {self._command.name!r} was still running after {limit:g} seconds")
        if ended.status < 0 or ended.status >= _SIGNALLED or ended.status in TROUBLE:
            said = ended.stderr or ("" if ended.output is None else str(ended.output))
            raise RewardError(
                f"The check {self._command.name!r} did not take place: it exited with status {ended.status}"
                + (f": {said[-_TOLD:]}" if said else ""),
                cure="Status 0 means passed and 1 failed",
            )
        return {"check": float(ended.status == 0)}

    def close(self) -> None:
        """Nothing outlives a check."""


def _written(folder: Path, task: str, output: str) -> dict[str, str]:
    """Writes what a check reads; gives the variables that name the files."""
    texts = {"SPANGRAD_TASK_FILE": ("task.json", task), "SPANGRAD_OUTPUT_FILE": ("output", output)}
    for name, text in texts.values():
        (folder / name).write_text(text, encoding="utf-8")
    return {variable: str(folder / name) for variable, (name, _) in texts.items()}
