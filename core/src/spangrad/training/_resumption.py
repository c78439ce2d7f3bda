"""Whether a run can go on, and what will be different from before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spangrad.errors import CheckpointError
from spangrad.training._checkpoint import read_state
from spangrad.training._preparation import Preparation
from spangrad.training._run_folder import RunFolder


def resumption_notes(folder: RunFolder, preparation: Preparation) -> tuple[str, ...]:
    """Checks that a run can go on with these settings, before the model is loaded.

    Args:
        folder: the run's.
        preparation: the settings it is to go on with.

    Returns:
        A sentence for everything the user should know: missing parts, and settings that have changed.

    Raises:
        CheckpointError: it cannot go on.
        RunFolderError: another process is working on it.
    """
    with folder.in_use():
        return (*_missing_parts(folder, preparation), *_changes(folder, preparation))


def _missing_parts(folder: RunFolder, preparation: Preparation) -> Iterator[str]:
    found = folder.latest_checkpoint()
    if found is None:
        if folder.summary.is_file():
            raise CheckpointError(
                f"The run {folder.path} was finished, and its checkpoint is gone: there is nothing to go on from",
                cure="Put its checkpoints/ back, or start a new run without --resume",
            )
        yield f"{folder.path} has no checkpoint: it begins again, with the finished rollouts it can use"
        return
    step, checkpoint = found
    state = read_state(checkpoint, preparation.identity())
    steps = preparation.config.training.steps
    if state.step > steps:
        raise CheckpointError(
            f"The run has done {state.step} training steps already, more than training.steps = {steps}",
            cure=f"Set training.steps to {state.step} or more, or start a new run without --resume",
        )
    if not folder.store.is_file():
        yield f"{folder.store} is gone: a new one is begun, and what came before step {step + 1} cannot be explained any more"


def _changes(folder: RunFolder, preparation: Preparation) -> Iterator[str]:
    """One sentence per setting that is not as the run was last started with; all of them take effect."""
    try:
        before = folder.settings()
    except CheckpointError as error:
        yield f"{error.what}; whether settings have changed is not known"
        return
    now = preparation.settings()
    old = dict(_flat({**before.config, before.backend: before.backend_options}))
    new = dict(_flat({**now.config, now.backend: now.backend_options}))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"Changed since the run was last started: {key} was {old.get(key)!r}, is {new.get(key)!r}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
