"""Which tasks a step trains on. A pure function of seed and step, so that a resumed run sees the same ones."""

from __future__ import annotations

import numpy as np


def tasks_of_step(step: int, *, tasks: int, per_step: int, seed: int) -> list[int]:
    """Positions of the tasks of training step `step` (from 1).

    Each epoch is a fresh permutation of all tasks, and steps take consecutive slices of the epochs laid end to end. A step
    that would meet the same task twice, at the seam of two epochs, takes the next task that is new to it instead.

    Args:
        step: training step, from 1.
        tasks: how many tasks there are.
        per_step: how many a step takes; at most `tasks`.
        seed: the run's seed.
    """
    first = (step - 1) * per_step
    epoch, position = divmod(first, tasks)
    chosen: dict[int, None] = {}
    while len(chosen) < per_step:
        permutation = np.random.default_rng([seed, epoch]).permutation(tasks)
        for index in permutation[position:].tolist():
            if len(chosen) < per_step:
                chosen.setdefault(index)
        epoch, position = epoch + 1, 0
    return list(chosen)
