"""From a train.toml to a trained model: settings, the loop in named steps, evaluation, checkpoints, and what a run leaves."""

from spangrad.training._checkpoint import POLICIES
from spangrad.training._collection import StopRequestedError
from spangrad.training._config import TrainConfig
from spangrad.training._evaluation import Evaluation
from spangrad.training._loaded_config import LoadedConfig, load_config
from spangrad.training._preparation import PolicyPreparation, Preparation, prepare
from spangrad.training._progress import ProgressDisplay, progress_display
from spangrad.training._rehearsal import RehearsedRollout, prepare_rehearsal, rehearse
from spangrad.training._resumption import resumption_notes
from spangrad.training._run import evaluate, train
from spangrad.training._run_folder import RunFolder, RunSettings, new_run_folder, resumed_run_folder, run_folders
from spangrad.training._serving import checked_listening, prepare_serving, serve
from spangrad.training._session import Listening, Serving
from spangrad.training._statistics import Proportion, proportion
from spangrad.training._summary import RunSummary
from spangrad.training._tasks import load_tasks, parsed
from spangrad.training._unconfigured import unconfigured

__all__ = [
    "POLICIES",
    "Evaluation",
    "Listening",
    "LoadedConfig",
    "PolicyPreparation",
    "Preparation",
    "ProgressDisplay",
    "Proportion",
    "RehearsedRollout",
    "RunFolder",
    "RunSettings",
    "RunSummary",
    "Serving",
    "StopRequestedError",
    "TrainConfig",
    "checked_listening",
    "evaluate",
    "load_config",
    "load_tasks",
    "new_run_folder",
    "parsed",
    "prepare",
    "prepare_rehearsal",
    "prepare_serving",
    "progress_display",
    "proportion",
    "rehearse",
    "resumed_run_folder",
    "resumption_notes",
    "run_folders",
    "serve",
    "train",
    "unconfigured",
]
