"""A learner's state on disk: what verl writes of weights, optimiser and random state, and one JSON file that says what it is.

learner.json                      version, steps, what was trained, and on how many workers
model_..., optim_..., extra_...   verl's own, one of each a worker (pickles: load no checkpoint from people you do not trust)
reference_rank_N.safetensors      the frozen reference of the KL term, if there is one
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from spangrad.errors import CheckpointError

_RECORD: Final = "learner.json"
_FORMAT: Final = 1


class LearnerRecord(BaseModel):
    """What a checkpoint is of."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: int = _FORMAT
    policy_version: int
    steps: int
    """Optimiser steps taken."""
    training: str
    """What is trained, in words."""
    workers: int
    """verl's files are parts, one a worker."""

    def write(self, folder: Path) -> None:
        """Puts it beside verl's files."""
        (folder / _RECORD).write_text(self.model_dump_json(indent=2), encoding="utf-8")


def read_record(folder: Path, *, training: str, workers: int) -> LearnerRecord:
    """The record of a checkpoint that this learner can load, with verl's files there.

    Raises:
        CheckpointError: there is none, a file is missing or damaged, or it is of another training.
    """
    file = folder / _RECORD
    if not file.is_file():
        raise CheckpointError(f"{folder} is no checkpoint of the verl backend: it has no {_RECORD}")
    try:
        record = LearnerRecord.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise damaged(folder, f"{_RECORD} cannot be read ({error.error_count()} errors)") from error
    if record.format != _FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder} has format {record.format}, this version reads {_FORMAT}",
            cure="Resume it with the version of spangrad-verl that wrote it",
        )
    if record.training != training:
        raise CheckpointError(
            f"The checkpoint {folder} is of {record.training}, but this run trains {training}",
            cure="Resume with the model and adapter the checkpoint was made with",
        )
    if record.workers != workers:
        raise CheckpointError(
            f"The checkpoint {folder} was written by {record.workers} workers, and this run has {workers}",
            cure="Resume on as many GPUs",
        )
    for rank in range(workers):
        for part in ("model", "optim", "extra_state"):
            name = f"{part}_world_size_{workers}_rank_{rank}.pt"
            if not (folder / name).is_file():
                raise damaged(folder, f"{name} is missing")
    return record


def damaged(folder: Path, why: str) -> CheckpointError:
    """The error for a folder that cannot be trusted."""
    return CheckpointError(f"The checkpoint {folder} is damaged: {why}", cure="Resume from an earlier checkpoint")
