"""Which tasks a step trains on. A pure function of the seed and a place in the order, so that a resumed run sees the same ones."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def tasks_from(
    position: int, *, tasks: int, count: int, seed: int, taken: Collection[int] = ()
) -> tuple[list[int], int]:
    """The next tasks of the order, and the place in it after them.

    Each epoch is a fresh permutation of all tasks, and the epochs are laid end to end. A step that would meet a task again, at the
    seam of two epochs, passes over it: it has had its turn.

    Args:
        position: place in the order, from 0.
        tasks: how many tasks there are.
        count: how many are wanted; with those taken at most `tasks`.
        seed: the run's seed.
        taken: positions of the tasks that the step has already.

    Returns:
        Positions of the tasks, all different, and where the next ones are to be looked for.

    Raises:
        ValueError: so many different ones there are not.
    """
    if count > tasks - len(set(taken)):
        raise ValueError(f"{count} more tasks of {tasks} are wanted, and {len(set(taken))} are taken")
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        epoch, place = divmod(position, tasks)
        for index in np.random.default_rng([seed, epoch]).permutation(tasks)[place:].tolist():
            if len(chosen) == count:
                break
            position += 1
            if index not in taken:
                chosen.setdefault(index)
    return list(chosen), position


def tasks_of_step(step: int, *, tasks: int, per_step: int, seed: int) -> list[int]:
    """Positions of the tasks of a step when every step takes as many, and begins as many places after the one before.

    Args:
        step: the step, from 1.
        tasks: how many tasks there are.
        per_step: how many a step takes; at most `tasks`.
        seed: the run's seed.
    """
    return tasks_from((step - 1) * per_step, tasks=tasks, count=per_step, seed=seed)[0]
