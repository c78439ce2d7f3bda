"""A step's report, shared out among its optimiser steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spangrad.backend import Learner, LossSettings, Proximal, UpdateBatch
from spangrad.lightningrl import AdvantageReport
from spangrad.training._config import TrainConfig
from spangrad.training._loss import proximal_policy
from spangrad.training._warm_start import ramped
from spangrad.transitions import BoolArray, FloatArray


async def update_batches(
    config: TrainConfig, loss: LossSettings, learner: Learner, report: AdvantageReport, *, policy: str, step: int
) -> list[UpdateBatch]:
    """The batches of a policy's updates, to be made in this order; groups stay whole. None when nothing has an advantage.

    Args:
        config: the settings.
        loss: what they say is minimised.
        learner: the policy's, with the weights at the start of the step.
        report: of the step.
        policy: whose transitions they are.
        step: its number, from 1.
    """
    training = config.training
    trained = report.trained & (report.batch.policies == policy)
    group = report.batch.group_index[report.batch.rollout_index]
    parts = np.array_split(np.unique(group[trained]), training.updates_per_step)
    shares = [trained & np.isin(group, part) for part in parts if part.size]
    if not loss.policy.uses_ratio:
        compared: list[Proximal] = ["present"] * len(shares)
    elif proximal_policy(config) == "sampler":
        compared = ["recorded"] * len(shares)
    else:
        compared = await _at_the_start(learner, report, shares)
    return [
        UpdateBatch(
            transitions=report.batch.select(share),
            learning_rate=ramped(training.learning_rate, step, training.ramp_steps),
            advantages=report.advantages[share],
            token_weights=report.token_weights[share] * training.updates_per_step,
            proximal=proximal,
            loss=loss,
            token_advantages=_rows(report.token_advantages, share),
            value_targets=None if report.value_targets is None else report.value_targets.select(share),
        )
        for share, proximal in zip(shares, compared, strict=True)
    ]


def _rows(rows: Sequence[FloatArray] | None, share: BoolArray) -> list[FloatArray] | None:
    """The rows of a share of the transitions."""
    return None if rows is None else [row for row, kept in zip(rows, share, strict=True) if kept]


async def _at_the_start(learner: Learner, report: AdvantageReport, shares: Sequence[BoolArray]) -> list[Proximal]:
    """What the weights at the start of the step say, for each update. The first one finds these weights still there."""
    later = [await learner.logprobs(report.batch.select(share)) for share in shares[1:]]
    first: list[Proximal] = ["present"]
    return [*first, *later] if shares else []
