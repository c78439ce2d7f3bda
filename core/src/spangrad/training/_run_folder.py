"""The folder a run leaves behind.

runs/NAME/
├── config.json          the settings it ran with
├── spangrad.db          rollouts, calls, rewards, spans, ledger
├── lock                 held by the process that works on the run
├── metrics.jsonl        one line per step, evaluation and warm-start step
├── checkpoints/step-N/  what --resume needs; only the latest is kept
├── model/               the trained model, a Hugging Face folder; with several policies one in a folder for each
├── reward_curve.png
└── summary.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spangrad.errors import CheckpointError, ConfigError
from spangrad.training._config import TrainedPolicy
from spangrad.training._run_file import read_record, write_whole
from spangrad.training._run_lock import locked

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run was started with, as config.json keeps it."""

    backend: str
    backend_options: dict[str, Any]
    """The backend's own table, defaults filled in, the model included."""
    seed: int
    policies: list[str]
    """Names of the policies trained."""
    config: dict[str, Any]
    """The train.toml, defaults filled in."""
    tokenizer_known: bool = True
    """Whether the backend's model has the tokenizer of what answered; not where an endpoint did and no model was named."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a run's folder."""

    path: Path
    new: bool = False
    """It was made for a run that is about to start, and goes again if that cannot."""

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    def write_settings(self, settings: RunSettings) -> None:
        """Keeps what the run was started with.

        Raises:
            RunFolderError: it cannot be written.
        """
        write_whole(self.config, json.dumps(asdict(settings), indent=2) + "\n")

    def settings(self) -> RunSettings:
        """What the run was started with.

        Raises:
            CheckpointError: the folder does not say.
        """
        try:
            return read_record(self.config, RunSettings)
        except ValueError as error:
            raise CheckpointError(f"{self.config} does not hold a run's settings: {error}") from error

    @property
    def store(self) -> Path:
        return self.path / "spangrad.db"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def model_of(self, policy: str, policies: Collection[str]) -> Path:
        """Where a policy's trained model goes: to `model`, or where there are several policies to a folder of its name in it."""
        return self.model / policy if len(policies) > 1 else self.model

    @property
    def curve(self) -> Path:
        return self.path / "reward_curve.png"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """A block in which no other process can work on the run.

        Raises:
            RunFolderError: another one does, or the folder cannot be written.
        """
        return locked(self.lock)

    def checkpoint_of(self, policies: Sequence[TrainedPolicy]) -> Path:
        """The newest checkpoint, if it holds these policies and no others.

        Raises:
            CheckpointError: there is none, or the run has other policies.
        """
        found = self.latest_checkpoint()
        if found is None:
            raise CheckpointError(
                f"{self.path} holds no checkpoint", cure="Give the folder of a run that has been trained"
            )
        names, there = [policy.name for policy in policies], self.settings().policies
        if sorted(names) != sorted(there):
            raise CheckpointError(
                f"{self.path} trained the policies {', '.join(there)}, and the settings name {', '.join(names)}",
                cure="Give the train.toml of the run",
            )
        return found[1]

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Step and folder of the newest whole checkpoint.

        Raises:
            CheckpointError: the folder that holds them cannot be looked into.
        """
        try:
            entries = list(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        except OSError as error:
            raise CheckpointError(
                f"{self.checkpoints} cannot be read: {error.strerror or error}", cure="Make it readable for you"
            ) from error
        steps = ((_STEP.fullmatch(entry.name), entry) for entry in entries)
        whole = [(int(match[1]), entry) for match, entry in steps if match]
        return max(whole, default=None)

    @contextlib.contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """A folder to fill; only when the block ends well does it become step's checkpoint and the older ones go."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoints / f"partial-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            final = self.checkpoints / f"step-{step:05d}"
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk is not to stay full for its sake
            raise
        for entry in self.checkpoints.iterdir():
            if entry != final:
                shutil.rmtree(entry)


def new_run_folder(root: Path, name: str) -> RunFolder:
    """Makes `root/name`, or `root/name-2`, `-3` ... when that is taken: a run never overwrites another.

    Raises:
        ConfigError: the folder cannot be made.
    """
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(
                f"The run's folder {path} cannot be made: {error.strerror or error}", cure="Choose another with --runs"
            ) from error
        else:
            return RunFolder(path, new=True)


def run_folders(root: Path) -> list[RunFolder]:
    """The runs of any name, the one that was worked on last first; folders that may not be looked into are left out.

    Raises:
        ConfigError: there is none.
    """
    dated = [(date, path) for path in _entries(root) if (date := _last_work(RunFolder(path))) is not None]
    if not dated:
        raise ConfigError(
            f"There is no run under {root}", cure="Name one with --run, or make one with `spangrad train`"
        )
    return [RunFolder(path) for _, path in sorted(dated, reverse=True)]


def _entries(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(
            f"{root} cannot be read: {error.strerror or error}",
            cure="Make it readable for you, or name a run with --run",
        ) from error


def _last_work(run: RunFolder) -> float | None:
    """When the store was written last; None where there is none to be seen."""
    try:
        return run.store.stat().st_mtime if run.store.is_file() else None
    except OSError:
        return None


def resumed_run_folder(root: Path, name: str) -> RunFolder:
    """The latest run of that name.

    Raises:
        CheckpointError: there is none.
    """
    pattern = re.compile(re.escape(name) + r"(?:-(\d+))?")
    found = [(int(m[1] or 1), p) for p in root.glob(f"{name}*") if p.is_dir() and (m := pattern.fullmatch(p.name))]
    if not found:
        raise CheckpointError(f"There is no run named {name} under {root} to resume", cure="Start it without --resume")
    return RunFolder(max(found)[1])
