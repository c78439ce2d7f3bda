"""Credit for how far a call brought the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import NO_GROUP, Comparison
from spangrad.lightningrl.credit._assigner import CreditNeeds, outcome
from spangrad.lightningrl.credit._options import check_gamma, check_weight
from spangrad.lightningrl.credit._steps import rollout_steps
from spangrad.transitions import FloatArray, TransitionBatch

FINAL_SCORE: Final = "score"
"""Name of the rollout-scope reward that says how far the agent had come in the end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A = A(outcome) + omega * A(progress): a step earns the change of the state's score that it made.

    Potential-based shaping (Ng, Harada and Russell, 1999) with the score as the potential, smeared back as prime-rl's turn_credit
    does (PrimeIntellect-ai/prime-rl#3282). The score of a step's state is known before the call, so a step earns the next
    step's score less its own; the last one earns the rollout's reward named "score" less its own, or nothing where there is
    none. Where a step has no score, what happened up to the next score counts for the last step before that. Each
    change is then shared with the steps before it, in proportion to gamma^distance with a sum of 1.

    So the credits of a rollout's steps add up to its last score less its first, whatever it did in between; going in circles and
    standing still earn nothing. Nothing is subtracted from them: a mean would make standing still a loss, and each further step
    another one. Outcome is the rollout's whole return.
    """

    gamma: float = 0.5
    """How much of a change each step further back gets, from 0 (the step that made it gets all) to 1 (all steps the same)."""
    omega: float = 1.0
    """Weight of the progress against the outcome."""
    needs: ClassVar[CreditNeeds] = CreditNeeds(scores=True, losses=True)

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        check_weight("omega", self.omega)

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """Whole returns among rollouts, and progress, from which no mean is subtracted.

        Raises:
            ConfigError: no call of the batch has a score.
        """
        if len(batch) and all(transition.score is None for transition in batch.transitions):
            raise ConfigError(
                "The credit assigner progress needs scores, but no call has one",
                cure="Let the agent say how far it has come before it calls the model: rollout.state(key, score=...)",
            )
        progress = np.zeros(len(batch), dtype=np.float64)
        groups = batch.group_index[batch.rollout_index]
        for steps in rollout_steps(batch):
            changes = _changes(batch, [members.tolist() for _, members in steps])
            if changes is None:
                for _, members in steps:
                    groups[members] = NO_GROUP
                continue
            earned = _smeared(changes, np.array([depth for depth, _ in steps]), self.gamma)
            for (_, members), credit in zip(steps, earned, strict=True):
                progress[members] = credit
        part = Comparison(
            progress,
            groups,
            batch.rollout_index,
            values=np.zeros(len(batch)),
            weight=self.omega,
            differing_calls=True,
        )
        return outcome(batch), part


def _changes(batch: TransitionBatch, steps: Sequence[Sequence[int]]) -> FloatArray | None:
    """(steps of the rollout) the change of score each made; None where no step has a score.

    Args:
        batch: the transitions.
        steps: positions of each step's transitions; the score of a step is the mean of theirs.
    """
    changes = np.zeros(len(steps), dtype=np.float64)
    before: float | None = None
    for step, members in enumerate(steps):
        known = [score for member in members if (score := batch.transitions[member].score) is not None]
        if not known:
            continue
        score = float(np.mean(known))
        if before is not None:
            changes[step - 1] = score - before
        before = score
    final = batch.transitions[steps[-1][0]].rollout_components.get(FINAL_SCORE)
    if before is None:
        return None
    if final is not None:
        changes[-1] = final - before
    return changes


def _smeared(changes: FloatArray, depths: FloatArray, gamma: float) -> FloatArray:
    """(steps) each change shared among its step and those before it, in proportion to gamma^(difference of depths)."""
    distances = depths[:, None] - depths[None, :]
    shares = np.where(distances >= 0, gamma ** np.maximum(distances, 0).astype(np.float64), 0.0)
    earned: FloatArray = (changes / shares.sum(axis=1)) @ shares
    return earned
