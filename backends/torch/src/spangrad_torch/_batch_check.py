"""Refuses batches that cannot be trained on, naming what is wrong, before anything is computed."""

from __future__ import annotations

import math

import numpy as np

from spangrad.backend import UpdateBatch
from spangrad.errors import BackendError
from spangrad.transitions import Transition
from spangrad_torch._work import is_untruncated


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
        _check_proximal(batch)
        _check_rows(batch)
    for transition in batch.transitions.transitions:
        _check_tokens(transition, max_sequence, vocabulary)
        if not imitate:
            _check_sampling(transition, compared=batch.proximal == "recorded" or bool(batch.loss.corrections))


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


def _check_proximal(batch: UpdateBatch) -> None:
    """Log-probabilities of every token if any are given, and something to correct if there are corrections."""
    if batch.loss.corrections and batch.proximal == "recorded":
        raise BackendError(
            "The corrections would do nothing: the ratio compares with the recorded log-probabilities themselves",
            cure='Take the weights at the start of the step as proximal policy, "step_start", or leave corrections out',
        )
    if isinstance(batch.proximal, str):
        return
    wanted = [len(transition.action_ids) for transition in batch.transitions.transitions]
    if [len(row) for row in batch.proximal] != wanted or not all(np.isfinite(row).all() for row in batch.proximal):
        raise BackendError("The proximal policy's log-probabilities are not one finite number per action token")


def _check_rows(batch: UpdateBatch) -> None:
    """One finite advantage for every token if tokens have their own, and targets of values for as many as there are."""
    lengths = [len(transition.action_ids) for transition in batch.transitions.transitions]
    rows = batch.token_advantages
    if rows is not None and ([len(row) for row in rows] != lengths or not all(np.isfinite(row).all() for row in rows)):
        raise BackendError("token_advantages are not one finite number per action token")
    if batch.value_targets is None:
        return
    targets, before = batch.value_targets.targets, batch.value_targets.before
    counts = [len(row) for row in targets]
    fit = len(counts) == len(lengths) and all(count <= length for count, length in zip(counts, lengths, strict=True))
    if not fit or [len(row) for row in before] != counts:
        raise BackendError("value_targets has other tokens than the actions")
    if not all(np.isfinite(row).all() for row in (*targets, *before)):
        raise BackendError("value_targets has numbers that are not finite", cure="Check the rewards")


def _check_tokens(transition: Transition, max_sequence: int, vocabulary: int) -> None:
    """A prompt and an action of known tokens that fit."""
    prompt, action = transition.prompt_ids, transition.action_ids
    tokens = prompt + action
    if not prompt or not action:
        raise BackendError(f"The call {transition.call_id} has an empty {'action' if prompt else 'prompt'}")
    if (length := len(tokens)) > max_sequence:
        raise BackendError(
            f"The call {transition.call_id} has {length} tokens, more than the {max_sequence} the learner takes",
            cure="Raise max_sequence of the backend, or leave such calls out",
        )
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise BackendError(
            f"The call {transition.call_id} has a token id outside the model's vocabulary of {vocabulary}",
            cure="Train the model that sampled the call",
        )


def _check_sampling(transition: Transition, *, compared: bool) -> None:
    """Recorded log-probabilities that the loss can use, where it compares with them."""
    if len(transition.logprobs) != len(transition.action_ids) or not all(map(math.isfinite, transition.logprobs)):
        raise BackendError(
            f"The call {transition.call_id} has {len(transition.logprobs)} log-probabilities, not all finite, "
            f"for {len(transition.action_ids)} tokens"
        )
    if not (math.isfinite(transition.temperature) and transition.temperature >= 0):
        raise BackendError(f"The call {transition.call_id} was sampled at temperature {transition.temperature}")
    if compared and not is_untruncated(transition):
        raise BackendError(
            f"The call {transition.call_id} was sampled with top_p or top_k, so its recorded log-probabilities are not "
            "those of the policy",
            cure="Sample with top_p = 1 and top_k = 0, or compare with the weights at the start of the step, uncorrected",
        )
