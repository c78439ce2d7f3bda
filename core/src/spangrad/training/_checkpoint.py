"""Saving a run so that it can go on, and going on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spangrad.backend import Backend, Learner
from spangrad.errors import CheckpointError
from spangrad.training._run_file import read_record
from spangrad.training._run_folder import RunFolder

STATE = "state.json"
POLICIES = "policies"


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is, besides the policy itself."""

    warm_start_steps: int
    """Warm-start steps done."""
    step: int
    """Training steps done."""
    train_seconds: float
    """Time spent so far, over all processes that worked on the run."""
    identity: dict[str, Any]
    """What must be the same for the run to go on: see `Preparation.identity`."""
    memory: dict[str, float] = field(default_factory=dict)
    """What the advantage estimator remembers; empty for those that remember nothing, and in checkpoints of older versions."""
    position: int | None = None
    """Where in the order of tasks the next step begins; None where all steps so far took the same number (older versions)."""


async def save_checkpoint(folder: RunFolder, learners: Mapping[str, Learner], state: RunState) -> None:
    """Writes a checkpoint of all policies; the previous one is kept until this one is whole.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        with folder.new_checkpoint(state.step) as path:
            for name, learner in learners.items():
                await learner.save(path / POLICIES / name)
            (path / STATE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint of step {state.step} cannot be written to {folder.checkpoints}: {error.strerror or error}",
            cure="Free some disk space or make the folder writable, then go on with --resume",
        ) from error


async def load_policies(checkpoint: Path, backend: Backend) -> None:
    """Gives every policy of a backend the weights, and all else, that a checkpoint holds of it.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another model.
    """
    for name, policy in backend.policies.items():
        await policy.learner.load(checkpoint / POLICIES / name)


def read_state(checkpoint: Path, identity: dict[str, Any]) -> RunState:
    """The state of a checkpoint, checked to be of this very run.

    Raises:
        CheckpointError: damaged, or made with other tasks or settings.
    """
    try:
        state = read_record(checkpoint / STATE, RunState)
    except ValueError as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is damaged: {STATE}: {error}", cure="Start a new run without --resume"
        ) from error
    changed = sorted(key for key in identity if identity[key] != state.identity.get(key))
    if changed:
        what = "; ".join(f"{key} was {state.identity.get(key)!r}, is {identity[key]!r}" for key in changed)
        raise CheckpointError(
            f"The run cannot go on, since what it trains on has changed: {what}",
            cure="Restore those settings, or start a new run without --resume",
        )
    return state
