"""How much each sampled token counts in the loss, which is the plain sum of weight x token loss.

Every denominator counts all rollouts, calls and tokens of the step, those that carry no signal (a group without variance)
included: their terms of the mean are simply 0. That is the mean over all samples of GRPO's objective (arXiv 2402.03300,
equation 3) and the constant of Dr. GRPO (arXiv 2503.20783), and it keeps a step with few useful groups small, where
dividing by the useful ones alone would blow it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from spangrad.errors import ConfigError
from spangrad.transitions import FloatArray, TransitionBatch

WeightingName = Literal["rollout", "call", "token", "constant"]


@dataclass(frozen=True, slots=True)
class Weighting:
    """A named rule that gives the tokens of each transition their weight."""

    name: WeightingName = "rollout"
    """rollout: every rollout weighs the same, 1 / (R x tokens of the rollout). call: every call weighs the same,
    1 / (T x tokens of the call), so rollouts of many calls weigh more. token: every token weighs the same,
    1 / (tokens of the step), so long rollouts weigh more. constant: 1 / (R x length), Dr. GRPO's, free of length bias."""
    length: int | None = None
    """Tokens of a rollout that count as one, for "constant" only: usually the most a rollout may sample."""

    def __post_init__(self) -> None:
        if self.name not in get_args(WeightingName):
            known = ", ".join(get_args(WeightingName))
            raise ConfigError(f"Unknown weighting {self.name!r} (known: {known})", cure="Choose one of the known ones")
        if self.name != "constant" and self.length is not None:
            raise ConfigError(
                f'The weighting "{self.name}" would ignore length = {self.length}',
                cure='Remove length, or choose the weighting "constant"',
            )
        if self.name == "constant" and (type(self.length) is not int or self.length < 1):
            raise ConfigError(
                f'The weighting "constant" has length = {self.length!r}',
                cure="Give length as the number of tokens a rollout may sample, such as calls x max_tokens",
            )

    def token_weights(self, batch: TransitionBatch) -> FloatArray:
        """(T,) weight of each token of the transition's action."""
        lengths = batch.action_lengths.astype(np.float64)
        rollouts = len(batch.rollout_keys)
        match self.name:
            case "rollout":
                per_rollout = np.bincount(batch.rollout_index, weights=lengths, minlength=rollouts)
                return 1.0 / (rollouts * per_rollout[batch.rollout_index])
            case "call":
                return 1.0 / (len(batch) * lengths)
            case "token":
                return np.full(len(batch), 1.0 / max(float(lengths.sum()), 1.0))
            case "constant":
                return np.full(len(batch), 1.0 / (max(rollouts, 1) * (self.length or 1)))
