"""A learner's state on disk: safetensors files and one JSON file that says what belongs to them. No pickle.

Format 2 has value.safetensors, format 1 has not and is what is written without a value head; either is read. A run that goes on
from format 1 with an estimator that needs values begins with a fresh head, whose values are all 0.

learner.json            versions, counters, what was trained, and the size and SHA-256 of the other files
weights.safetensors     the trained weights in fp32: all of them, or the adapters
optimizer.safetensors   AdamW's moments and step count of each weight, "exp_avg/<weight>" and so on
reference.safetensors   the frozen reference of the KL term, if there is one
value.safetensors       the value head, if values were learnt: "head/<weight>", and its moments, "exp_avg/<weight>" and so on
random.safetensors      torch's random state
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spangrad.errors import CheckpointError
from spangrad_torch._folder import whole_folder, written_whole

_FORMATS = (1, 2)
_RECORD = "learner.json"
_HEAD = "head/"


@dataclass(frozen=True)
class LearnerState:
    """All that a learner needs to go on exactly."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """Keys are "<quantity>/<weight>"; empty before the first step."""
    reference: Mapping[str, Tensor] | None
    random: Tensor
    """torch's random state of the CPU, (n,) bytes."""
    policy_version: int
    steps: int
    """Optimiser steps taken."""
    training: str
    """What is trained, in words: a checkpoint is only of use to a learner that trains the same."""
    value_head: Mapping[str, Tensor] | None = None
    """Its weights; None where no values were learnt."""
    value_optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    """Its moments, as in `optimizer`."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    size: int
    sha256: str


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    policy_version: int
    steps: int
    training: str
    files: dict[str, _File]


def save_state(state: LearnerState, folder: Path) -> None:
    """Writes a state; the folder appears whole or stays as it was.

    Raises:
        CheckpointError: the disk is full or may not be written.
    """
    parts = {"weights": state.weights, "optimizer": state.optimizer, "random": {"cpu": state.random}}
    if state.reference is not None:
        parts["reference"] = state.reference
    if state.value_head is not None:
        head = {f"{_HEAD}{name}": weight for name, weight in state.value_head.items()}
        parts["value"] = {**head, **state.value_optimizer}
    with written_whole(folder) as partial:
        files = {}
        for name, tensors in parts.items():
            file = partial / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, file)
            files[file.name] = _File(size=file.stat().st_size, sha256=_digest(file))
        record = _Record(
            format=_FORMATS[state.value_head is not None],
            policy_version=state.policy_version,
            steps=state.steps,
            training=state.training,
            files=files,
        )
        (partial / _RECORD).write_text(record.model_dump_json(indent=2), encoding="utf-8")


def load_state(folder: Path, *, training: str) -> LearnerState:
    """Reads a state after checking that nothing of it is damaged.

    Args:
        folder: what `save_state` wrote.
        training: what the asking learner trains; must equal what the state says.

    Raises:
        CheckpointError: there is none, a file is missing or damaged, or it is of other training.
    """
    folder = whole_folder(folder)
    record = _read_record(folder)
    if record.training != training:
        raise CheckpointError(
            f"The checkpoint {folder} is of {record.training}, but this run trains {training}",
            cure="Resume with the model and adapter the checkpoint was made with",
        )
    parts = {name: _read_tensors(folder / name, expected) for name, expected in record.files.items()}
    value = parts.get("value.safetensors")
    if (value is None) != (record.format == _FORMATS[0]):
        raise _damaged(folder, f"{_RECORD} says it has format {record.format}, and value.safetensors says otherwise")
    moments = {key: tensor for key, tensor in (value or {}).items() if not key.startswith(_HEAD)}
    head = {key.removeprefix(_HEAD): tensor for key, tensor in (value or {}).items() if key.startswith(_HEAD)}
    try:
        return LearnerState(
            weights=parts["weights.safetensors"],
            optimizer=parts["optimizer.safetensors"],
            reference=parts.get("reference.safetensors"),
            random=parts["random.safetensors"]["cpu"],
            policy_version=record.policy_version,
            steps=record.steps,
            training=record.training,
            value_head=None if value is None else head,
            value_optimizer=moments,
        )
    except KeyError as error:
        raise _damaged(folder, f"{_RECORD} does not name {error}") from error


def _read_record(folder: Path) -> _Record:
    """The JSON file."""
    file = folder / _RECORD
    if not file.is_file():
        raise CheckpointError(f"{folder} is no checkpoint of the torch backend: it has no {_RECORD}")
    try:
        record = _Record.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise _damaged(folder, f"{_RECORD} cannot be read ({error.error_count()} errors)") from error
    if record.format not in _FORMATS:
        raise CheckpointError(
            f"The checkpoint {folder} has format {record.format}, this version reads {' and '.join(map(str, _FORMATS))}",
            cure="Resume it with the version of spangrad-torch that wrote it",
        )
    return record


def _read_tensors(file: Path, expected: _File) -> Mapping[str, Tensor]:
    """The tensors of a file whose size and digest are as recorded."""
    if not file.is_file():
        raise _damaged(file.parent, f"{file.name} is missing")
    if file.stat().st_size != expected.size or _digest(file) != expected.sha256:
        raise _damaged(file.parent, f"{file.name} has changed since it was written")
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise _damaged(file.parent, f"{file.name} cannot be read: {error}") from error
    return tensors


def _damaged(folder: Path, why: str) -> CheckpointError:
    """The error for a folder that cannot be trusted."""
    return CheckpointError(f"The checkpoint {folder} is damaged: {why}", cure="Resume from an earlier checkpoint")


def _digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
