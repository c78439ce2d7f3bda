"""Whether a run can go on, and what will be different from before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spangrad.errors import CheckpointError
from spangrad.training._checkpoint import read_state
from spangrad.training._metrics import MetricsFile
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
        kept = ", with the finished rollouts it can use" if folder.store.exists() else ""
        yield f"{folder.path} has no checkpoint: it begins again{kept}"
        return
    step, checkpoint = found
    state = read_state(checkpoint, preparation.identity())
    steps = preparation.config.training.steps
    if state.step > steps:
        raise CheckpointError(
            f"The run has done {state.step} training steps already, more than training.steps = {steps}",
            cure=f"Set training.steps to {state.step} or more, or start a new run without --resume",
        )
    _check_measured_before(folder, preparation, state.step)
    if not folder.store.exists():
        yield f"{folder.store} is gone: a new one is begun, and what came before step {step + 1} cannot be explained any more"


def _check_measured_before(folder: RunFolder, preparation: Preparation, step: int) -> None:
    """Refuses a held-out set that was not measured before training: what is there now to measure has been trained.

    Raises:
        CheckpointError: there is one.
    """
    records = MetricsFile(folder.metrics).read() if step else []
    known = {r.get("heldout") for r in records if r["kind"] == "evaluation" and r.get("step") == 0}
    unknown = [name for name in preparation.heldout if name not in known] if step else []
    if unknown:
        raise CheckpointError(
            f"{folder.metrics} does not say how the model did on {', '.join(unknown)} before it was trained, "
            f"and after {step} training steps that cannot be measured any more",
            cure="Put the file back, or go on without: remove these held-out sets, and measure with `spangrad eval` at the end",
        )


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
            yield f"Changed since the run was last started: {key} was {_said(old, key)}, is {_said(new, key)}"


def _said(settings: Mapping[str, Any], key: str) -> str:
    return "not given" if settings.get(key) is None else repr(settings[key])


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
