"""The learner's workers on Ray, as verl's own worker group starts them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from backends.verl.tests.fakes import FakeServed
from backends.verl.tests.settings import checked
from backends.verl.tests.transitions import batch, some

from spangrad.backend import KlTerm, LossSettings
from spangrad.errors import BackendError
from spangrad_verl._backend import learner_setup
from spangrad_verl._learner import VerlLearner
from spangrad_verl._model_folder import ModelFolder
from spangrad_verl._ray_workers import RayWorkers
from spangrad_verl._worker_config import worker_config

pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]

ROWS = some(5)
ROOT = Path(__file__).parents[3]


@pytest.fixture
def on_ray(model_folder: Path, tmp_path: Path) -> Iterator[Any]:
    """A learner on two workers of one Ray."""
    options = {
        "trainer": {"device": "cpu", "n_gpus_per_node": 2},
        "ray_kwargs": {"ray_init": {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 10**8}},
    }
    table = checked(model_folder, options)
    model = ModelFolder.find(str(model_folder))
    setup = learner_setup(table, model)
    config = worker_config(table.verl, str(model_folder), max_sequence=setup.max_sequence)
    handover = tmp_path / "of-ray"
    handover.mkdir()
    workers = RayWorkers.start(table.verl, config, timeout=300)
    yield (
        VerlLearner(workers.group, setup, model, FakeServed(), handover),
        workers,
    )
    workers.close()
    workers.close()


async def test_two_workers_do_what_one_does(on_ray: Any, make_learner: Callable[..., Any], tmp_path: Path) -> None:
    """The same steps, of five rows that two workers cannot share out evenly, with a KL term, saved and loaded in between."""
    learner, *_ = make_learner()
    both = (learner, on_ray[0])
    loss = LossSettings(kl=KlTerm("k3", 0.1), entropy_bonus=0.01)

    for each in both:
        await each.freeze_reference()
        await each.update(batch(ROWS, learning_rate=1e-2))
        await each.save(tmp_path / str(id(each)))
        await each.load(tmp_path / str(id(each)))
    one, two = [await each.update(batch(ROWS, loss=loss, learning_rate=1e-2)) for each in both]
    logprobs, others = [await each.logprobs(ROWS) for each in both]

    assert two.loss == pytest.approx(one.loss, rel=1e-4)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
    assert two.tokens == one.tokens
    for name in ("reference_kl", "entropy", "mismatch_kl", "clip_fraction"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-3), name
    for row, other in zip(logprobs, others, strict=True):
        np.testing.assert_allclose(row, other, atol=1e-3)
    assert await on_ray[0].publish() == 3
    assert "model.embed_tokens.weight" in on_ray[0]._served.weights


TAKEN = """
import sys
from pathlib import Path
import ray
from backends.verl.tests.settings import checked
from spangrad.errors import BackendError
from spangrad_verl._ray_workers import RayWorkers
from spangrad_verl._worker_config import worker_config

@ray.remote(num_cpus=1)
class Other:
    def is_there(self):
        return True

if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=10**8)
    other = Other.remote()
    ray.get(other.is_there.remote())
    table = checked(Path(sys.argv[1]), {"trainer": {"device": "cpu", "n_gpus_per_node": 1}})
    try:
        RayWorkers.start(table.verl, worker_config(table.verl, sys.argv[1], max_sequence=64), timeout=3)
    except BackendError as error:
        print(error)
"""
"""The one place of a Ray that others have started is taken."""


def test_a_place_that_others_hold_is_an_error_and_the_process_can_end(model_folder: Path) -> None:
    command = [sys.executable, "-c", TAKEN, str(model_folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)

    assert "Ray has not given the learner its 1 CPUs within 3 s" in done.stdout


async def test_a_worker_that_dies_ends_in_an_error_that_says_so(on_ray: Any) -> None:
    """One of the two; the other one waits for it."""
    learner, workers = on_ray
    ray.kill(workers.group.workers[0])

    async with asyncio.timeout(60):
        with pytest.raises(BackendError, match=r"A worker of the learner (has died|failed)"):
            await learner.update(batch(ROWS))
