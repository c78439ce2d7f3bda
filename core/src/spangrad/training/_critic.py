"""What a train.toml says about the learnt value, whether it would have an effect, and the values of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from spangrad.backend import CriticSettings, Learner
from spangrad.lightningrl import LightningRL
from spangrad.training._config import TrainConfig
from spangrad.training._loss import Problem
from spangrad.transitions import FloatArray, TransitionBatch


def critic_conflicts(config: TrainConfig, algorithm: LightningRL, settings: CriticSettings) -> Iterator[Problem]:
    """Settings of the critic that would do nothing or contradict others, and losses that do not go with the estimator."""
    needs = algorithm.estimator.requirements
    if needs.level == "token" and config.algorithm.loss.name == "gspo":
        why = "gspo takes one advantage per call, and the estimator gives one per token; gspo_token takes those"
        yield ("algorithm", "loss"), why
    if not needs.values:
        if config.algorithm.critic is not None:
            why = f"the estimator {config.algorithm.estimator.name} goes by no value; it would do nothing"
            yield ("algorithm", "critic"), why
        return
    if settings.clip is not None and config.training.updates_per_step == 1:
        why = "with one update per step every value is the one it is compared with; it would do nothing"
        yield ("algorithm", "critic", "clip"), why
    if settings.learning_rate <= config.training.learning_rate:
        why = (
            f"{settings.learning_rate} is not above training.learning_rate = {config.training.learning_rate}: "
            "a value that learns no faster than the policy is always that of an older one"
        )
        yield ("algorithm", "critic", "learning_rate"), why


async def values_of(
    learners: Mapping[str, Learner], algorithm: LightningRL, batch: TransitionBatch
) -> list[FloatArray | None] | None:
    """(T,) of (A,) values before each token, each by the learner of its policy; None for a transition too long for that one, and
    None altogether if the estimator needs none.
    """
    if not algorithm.estimator.requirements.values:
        return None
    found: list[FloatArray | None] = [None] * len(batch)
    lengths = np.array([len(t.prompt_ids) for t in batch.transitions], dtype=np.int64) + batch.action_lengths
    for name, learner in learners.items():
        own = (batch.policies == name) & (lengths <= learner.max_sequence)
        rows = await learner.values(batch.select(own)) if own.any() else []
        for index, row in zip(np.flatnonzero(own).tolist(), rows, strict=True):
            found[index] = row
    return found
