"""Refuses batches that cannot be trained on, naming what is wrong, before anything is computed."""

from __future__ import annotations

import math

import numpy as np

from spangrad.backend import LossSettings, UpdateBatch
from spangrad.errors import BackendError
from spangrad.transitions import Transition
from spangrad_torch._gradient import is_untruncated


def check_batch(batch: UpdateBatch, *, imitate: bool, max_sequence: int, vocabulary: int) -> None:
    """Checks numbers and every transition.

    Args:
        batch: of T transitions.
        imitate: the batch is for maximum likelihood, which needs neither advantages nor recorded log-probabilities.
        max_sequence: most tokens of a prompt and its action.
        vocabulary: token ids are below it.

    Raises:
        BackendError: the first thing that is wrong.
    """
    _check_numbers(batch, imitate=imitate)
    if not imitate:
        _check_loss(batch.loss)
    for transition in batch.transitions.transitions:
        _check_tokens(transition, max_sequence, vocabulary)
        if not imitate:
            _check_sampling(transition, on_policy=batch.on_policy)


def _check_numbers(batch: UpdateBatch, *, imitate: bool) -> None:
    """One finite weight, and one finite advantage if it is used, for each transition."""
    columns = {"token_weights": batch.token_weights} | ({} if imitate else {"advantages": batch.advantages})
    for name, values in columns.items():
        array = np.asarray(values)
        if array.shape != (len(batch.transitions),):
            raise BackendError(f"{name} has shape {array.shape}, but there are {len(batch.transitions)} transitions")
        if not np.isfinite(array).all():
            row = int(np.argmin(np.isfinite(array)))
            raise BackendError(
                f"{name} of call {batch.transitions.transitions[row].call_id} is {array[row]}",
                cure="Check the rewards and the advantage estimator",
            )
    if not (math.isfinite(batch.learning_rate) and batch.learning_rate >= 0):
        raise BackendError(
            f"The learning rate is {batch.learning_rate}", cure="Choose a finite number that is not negative"
        )


def _check_loss(loss: LossSettings) -> None:
    """A loss this backend has, with constants that make sense."""
    if loss.name != "ppo_clip":
        raise BackendError(f"The torch backend has no loss {loss.name!r}", cure='Use "ppo_clip"')
    wrong = [
        f"{name} is {value}"
        for name, value, fine in (
            ("clip_low", loss.clip_low, 0 <= loss.clip_low <= 1),
            ("clip_high", loss.clip_high, 0 <= loss.clip_high < math.inf),
            ("kl_coefficient", loss.kl_coefficient, 0 <= loss.kl_coefficient < math.inf),
        )
        if not fine
    ]
    if wrong:
        raise BackendError(
            f"The loss has impossible settings: {', '.join(wrong)}",
            cure="clip_low lies in [0, 1], clip_high and kl_coefficient are finite and not negative",
        )


def _check_tokens(transition: Transition, max_sequence: int, vocabulary: int) -> None:
    """A prompt and an action of known tokens that fit."""
    prompt, action = transition.prompt_ids, transition.action_ids
    tokens = prompt + action
    if not prompt or not action:
        raise BackendError(f"The call {transition.call_id} has an empty {'action' if prompt else 'prompt'}")
    if (length := len(tokens)) > max_sequence:
        raise BackendError(
            f"The call {transition.call_id} has {length} tokens, more than the {max_sequence} the learner takes",
            cure="Raise max_sequence of the torch backend, or leave such calls out",
        )
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise BackendError(
            f"The call {transition.call_id} has a token id outside the model's vocabulary of {vocabulary}",
            cure="Train the model that sampled the call",
        )


def _check_sampling(transition: Transition, *, on_policy: bool) -> None:
    """Recorded log-probabilities that the loss can use."""
    if len(transition.logprobs) != len(transition.action_ids) or not all(map(math.isfinite, transition.logprobs)):
        raise BackendError(
            f"The call {transition.call_id} has {len(transition.logprobs)} log-probabilities, not all finite, "
            f"for {len(transition.action_ids)} tokens"
        )
    if not (math.isfinite(transition.temperature) and transition.temperature >= 0):
        raise BackendError(f"The call {transition.call_id} was sampled at temperature {transition.temperature}")
    if not on_policy and not is_untruncated(transition):
        raise BackendError(
            f"The call {transition.call_id} was sampled with top_p or top_k, so its recorded log-probabilities are not "
            "those of the policy and its weights of that time are gone",
            cure="Sample with top_p = 1 and top_k = 0, or take one on-policy step per batch",
        )
