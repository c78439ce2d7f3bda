"""verl's own training worker in this process, on a model small enough to train in milliseconds.

Needs verl, which has an environment of its own: see the session `verl` of noxfile.py. Without it only `test_overrides.py` is collected.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from backends.verl.tests.fakes import FakeServed

if TYPE_CHECKING:
    from spangrad_verl._actor_worker import ActorWorker
    from spangrad_verl._learner import VerlLearner

HERE = Path(__file__).parent
if find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # Before verl is imported, here and in the workers that Ray starts.
    os.environ.update(
        VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_MODULES="verl_cpu", VERL_ENGINE_DEVICE="cuda", HF_HUB_OFFLINE="1"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: random 2-layer Llama with grouped queries, and a tokenizer of single bytes."""
    import torch
    from backends.torch.tests.conftest import make_tiny_model

    torch.set_num_threads(1)
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def process_group() -> Iterator[None]:
    """torch's process group with this process alone in it, and the environment that verl's worker group would set."""
    import torch

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("cpu:gloo", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def make_learner(
    model_folder: Path, tmp_path: Path, process_group: None
) -> Callable[..., tuple[VerlLearner, ActorWorker, Any]]:
    """Makes a learner whose one worker is in this process, the worker, and what the servers were given."""
    from backends.verl.tests.settings import checked

    from spangrad_verl._actor_worker import ActorWorker
    from spangrad_verl._backend import learner_setup
    from spangrad_verl._learner import VerlLearner
    from spangrad_verl._model_folder import ModelFolder
    from spangrad_verl._worker_config import worker_config

    def make(**options: Any) -> tuple[VerlLearner, ActorWorker, Any]:
        table = checked(model_folder, options)
        model = ModelFolder.find(str(model_folder))
        setup = learner_setup(table, model)
        worker = ActorWorker(worker_config(table.verl, str(model_folder), max_sequence=setup.max_sequence))
        worker.reset()
        served = FakeServed()
        return VerlLearner(worker, setup, model, served, tmp_path / "handover"), worker, served

    return make
