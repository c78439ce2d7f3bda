"""A batch of transitions as the rows that verl trains on: one per transition, with everything about a token decided beforehand.

Letters: T transitions, A tokens of an action. Rows are of numpy arrays; `_tensors` makes tensors of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spangrad.backend import Correction, UpdateBatch
from spangrad.transitions import BoolArray, FloatArray, Transition, TransitionBatch
from spangrad_torch import is_untruncated, temperatures_of
from spangrad_torch.losses import correction_factor


@dataclass(frozen=True)
class Rows:
    """T rows; none of them may be left out of an update, nor be put into another one than the rest."""

    transitions: Sequence[Transition]
    temperatures: FloatArray
    """(T,) what logits are divided by."""
    token_weights: Sequence[FloatArray]
    """(T,) of (A,) factor of all that is minimised at a token."""
    policy_weights: Sequence[FloatArray]
    """(T,) of (A,) factor of the policy loss: the same, corrected."""
    advantages: Sequence[FloatArray]
    """(T,) of (A,)"""
    proximal: Sequence[FloatArray] | None
    """(T,) of (A,) log-probabilities that the ratio compares with; None for those of the weights as they are."""
    recorded: Sequence[FloatArray] | None
    """(T,) of (A,) the sampler's log-probabilities, for figures; None for maximum likelihood."""
    comparable: BoolArray
    """(T,) they are those of the whole distribution."""
    reference: Sequence[FloatArray] | None = None
    """(T,) of (A,) log-probabilities of the KL term's reference."""

    @property
    def tokens(self) -> int:
        """Tokens of all actions."""
        return sum(len(transition.action_ids) for transition in self.transitions)


def have_gradient(batch: UpdateBatch, *, imitate: bool) -> BoolArray:
    """(T,) whether a transition can move the weights: the others need not be computed, and change nothing.

    Args:
        batch: of T transitions.
        imitate: for maximum likelihood, which has no advantages.
    """
    weighted: BoolArray = np.asarray(batch.token_weights) != 0
    if imitate or batch.loss.kl is not None or batch.loss.entropy_bonus:
        return weighted
    if batch.token_advantages is not None:
        pulls = np.array([bool(np.any(row)) for row in batch.token_advantages], dtype=np.bool_)
    else:
        pulls = np.asarray(batch.advantages) != 0
    return weighted & pulls


def selected(batch: UpdateBatch, keep: BoolArray) -> UpdateBatch:
    """The transitions where `keep` (T,) is true, with all that belongs to them."""
    rows = batch.token_advantages
    return UpdateBatch(
        transitions=batch.transitions.select(keep),
        learning_rate=batch.learning_rate,
        advantages=np.asarray(batch.advantages)[keep],
        token_weights=np.asarray(batch.token_weights)[keep],
        proximal=batch.proximal if isinstance(batch.proximal, str) else _kept(batch.proximal, keep),
        loss=batch.loss,
        token_advantages=None if rows is None else _kept(rows, keep),
    )


def update_rows(
    batch: UpdateBatch, *, present: Sequence[FloatArray] | None = None, reference: Sequence[FloatArray] | None = None
) -> Rows:
    """Rows of a policy-gradient step.

    Args:
        batch: all of whose transitions are to be computed.
        present: (T,) of (A,) log-probabilities under the weights as they are; needed where corrections compare with these.
        reference: (T,) of (A,) likewise of the reference; needed with a KL term.

    Raises:
        ValueError: what is needed is not given.
    """
    transitions = batch.transitions.transitions
    recorded = [np.asarray(transition.logprobs, dtype=np.float64) for transition in transitions]
    if isinstance(batch.proximal, str):
        proximal = recorded if batch.proximal == "recorded" else present
    else:
        proximal = [np.asarray(row, dtype=np.float64) for row in batch.proximal]
    corrections = batch.loss.corrections
    if (corrections and proximal is None) or (batch.loss.kl is not None and reference is None):
        raise ValueError(
            "corrections need the log-probabilities of the proximal policy, and a KL term those of its reference"
        )
    weights = _spread(batch.token_weights, transitions)
    corrected = weights
    if corrections and proximal is not None:
        corrected = [
            _corrected(weight, corrections, compared - sampled)
            for weight, compared, sampled in zip(weights, proximal, recorded, strict=True)
        ]
    given = batch.token_advantages
    advantages = (
        _spread(batch.advantages, transitions)
        if given is None
        else [np.asarray(row, dtype=np.float64) for row in given]
    )
    return Rows(
        transitions=transitions,
        temperatures=temperatures_of(transitions),
        token_weights=weights,
        policy_weights=corrected,
        advantages=advantages,
        proximal=proximal,
        recorded=recorded,
        comparable=np.array([is_untruncated(transition) for transition in transitions], dtype=np.bool_),
        reference=reference,
    )


def likelihood_rows(batch: UpdateBatch) -> Rows:
    """Rows of a step of maximum likelihood: at temperature 1, for that is the model as it is."""
    transitions = batch.transitions.transitions
    weights = _spread(batch.token_weights, transitions)
    ones = np.ones(len(transitions))
    return Rows(
        transitions=transitions,
        temperatures=ones,
        token_weights=weights,
        policy_weights=weights,
        advantages=_spread(ones, transitions),
        proximal=None,
        recorded=None,
        comparable=np.zeros(len(transitions), dtype=np.bool_),
    )


def plain_rows(batch: TransitionBatch) -> Rows:
    """Rows to compute log-probabilities of, and nothing else."""
    nothing = np.zeros(len(batch))
    zeros = _spread(nothing, batch.transitions)
    return Rows(
        transitions=batch.transitions,
        temperatures=temperatures_of(batch.transitions),
        token_weights=zeros,
        policy_weights=zeros,
        advantages=zeros,
        proximal=None,
        recorded=None,
        comparable=nothing.astype(np.bool_),
    )


def _corrected(weight: FloatArray, corrections: Sequence[Correction], weight_log: FloatArray) -> FloatArray:
    """(A,) weights of one action's tokens by the corrections, which go by (A,) log of w = pi_proximal / mu."""
    together = torch.zeros(len(weight_log), dtype=torch.int64)
    factor: FloatArray = correction_factor(corrections, torch.from_numpy(weight_log), together).numpy()
    return weight * factor


def _spread(values: FloatArray, transitions: Sequence[Transition]) -> list[FloatArray]:
    """(T,) of (A,) each action token's share of (T,) values."""
    return [
        np.full(len(transition.action_ids), float(value)) for value, transition in zip(values, transitions, strict=True)
    ]


def _kept(rows: Sequence[FloatArray], keep: BoolArray) -> list[FloatArray]:
    return [row for row, kept in zip(rows, keep, strict=True) if kept]
