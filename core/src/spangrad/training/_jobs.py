"""The rollouts of a training step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spangrad.gateway import SamplingOverride
from spangrad.rollouts import RolloutJob
from spangrad.training._evaluation import path_safe
from spangrad.training._preparation import Preparation


def group_id(preparation: Preparation, step: int, task: int) -> str:
    """Of the rollouts of a task (by its position) in a step."""
    return f"train-{step:05d}-{path_safe(preparation.tasks[task].task_id)}"


def training_jobs(preparation: Preparation, step: int, task: int, members: Iterable[int]) -> list[RolloutJob]:
    """Rollouts of a task. Ids and seeds follow from the settings and the numbers alone, so a resumed run asks for the same.

    Args:
        preparation: the run's.
        step: the step, from 1.
        task: position of the task.
        members: numbers of the rollouts within the group, from 0; those that take the place of others count on.
    """
    config, table = preparation.config, preparation.config.sampling
    group, jobs = group_id(preparation, step, task), []
    for member in members:
        seed = int(np.random.SeedSequence([config.seed, step, task, member]).generate_state(1)[0])
        sampling = SamplingOverride(table.temperature, table.top_p, table.top_k, table.max_tokens, seed)
        jobs.append(RolloutJob(f"{group}-{member}", 1, group, preparation.tasks[task], "train", step, sampling))
    return jobs
