"""The rollouts of a training step."""

from __future__ import annotations

import numpy as np

from spangrad.gateway import SamplingOverride
from spangrad.rollouts import RolloutJob
from spangrad.training._evaluation import path_safe
from spangrad.training._order import tasks_of_step
from spangrad.training._preparation import Preparation


def training_jobs(preparation: Preparation, step: int) -> list[RolloutJob]:
    """One group per task of the step. Ids and seeds follow from the settings alone, so a resumed run asks for the same."""
    config, tasks = preparation.config, preparation.tasks
    table = config.sampling
    jobs = []
    for index in tasks_of_step(step, tasks=len(tasks), per_step=config.training.tasks_per_step, seed=config.seed):
        group = f"train-{step:05d}-{path_safe(tasks[index].task_id)}"
        for member in range(config.training.rollouts_per_task):
            seed = int(np.random.SeedSequence([config.seed, step, index, member]).generate_state(1)[0])
            sampling = SamplingOverride(table.temperature, table.top_p, table.top_k, table.max_tokens, seed)
            jobs.append(RolloutJob(f"{group}-{member}", 1, group, tasks[index], "train", step, sampling))
    return jobs
