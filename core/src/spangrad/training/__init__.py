"""From a train.toml to a trained model: settings, the loop in named steps, evaluation, checkpoints, and what a run leaves."""

from spangrad.training._checkpoint import POLICY as POLICY_FOLDER
from spangrad.training._collection import StopRequestedError
from spangrad.training._config import LoadedConfig, TrainConfig, load_config
from spangrad.training._evaluation import Evaluation
from spangrad.training._preparation import Preparation, prepare
from spangrad.training._progress import ProgressDisplay, progress_display
from spangrad.training._rehearsal import (
    RehearsedRollout,
    prepare_rehearsal,
    rehearse,
    unconfigured,
)
from spangrad.training._run import evaluate, train
from spangrad.training._run_folder import RunFolder, RunSettings, latest_run_folder, new_run_folder, resumed_run_folder
from spangrad.training._statistics import Proportion, proportion
from spangrad.training._summary import RunSummary
from spangrad.training._tasks import load_tasks

__all__ = [
    "POLICY_FOLDER",
    "Evaluation",
    "LoadedConfig",
    "Preparation",
    "ProgressDisplay",
    "Proportion",
    "RehearsedRollout",
    "RunFolder",
    "RunSettings",
    "RunSummary",
    "StopRequestedError",
    "TrainConfig",
    "evaluate",
    "latest_run_folder",
    "load_config",
    "load_tasks",
    "new_run_folder",
    "prepare",
    "prepare_rehearsal",
    "progress_display",
    "proportion",
    "rehearse",
    "resumed_run_folder",
    "train",
    "unconfigured",
]
