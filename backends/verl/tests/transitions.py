"""Transitions of made-up calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from spangrad.backend import LossSettings, UpdateBatch
from spangrad.transitions import Transition, TransitionBatch


def transition(
    number: int, prompt: list[int], action: list[int], logprobs: list[float] | None = None, **given: Any
) -> Transition:
    """A call of a rollout of its own unless told otherwise."""
    fields: dict[str, Any] = {
        "rollout_id": f"r{number}",
        "attempt": 1,
        "group_id": "g",
        "call_id": f"c{number}",
        "choice": 0,
        "index": 0,
        "agent": None,
        "policy": "policy",
        "policy_version": 0,
        "prompt_ids": tuple(prompt),
        "action_ids": tuple(action),
        "logprobs": tuple(logprobs or [-3.0] * len(action)),
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "reward": None,
        "rollout_reward": 0.0,
    }
    return Transition(**{**fields, **given})


def some(count: int = 5, seed: int = 0) -> TransitionBatch:
    """Calls of different lengths and temperatures, the last two with one prompt."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt = [1, *random.integers(3, 200, size=3 + number).tolist()]
        action = random.integers(3, 200, size=2 + (number * 3) % 5).tolist()
        logprobs = (-random.uniform(1.0, 6.0, size=len(action))).tolist()
        made.append(transition(number, prompt, action, logprobs, temperature=(1.0, 0.7)[number % 2]))
    return TransitionBatch(tuple(made))


def batch(
    transitions: TransitionBatch, *, loss: LossSettings | None = None, seed: int = 1, **given: Any
) -> UpdateBatch:
    """Advantages and weights that differ from call to call."""
    random = np.random.default_rng(seed)
    count = len(transitions)
    fields: dict[str, Any] = {
        "learning_rate": 1e-3,
        "advantages": random.normal(size=count),
        "token_weights": random.uniform(0.05, 0.5, size=count),
        "loss": loss or LossSettings(),
    }
    return UpdateBatch(transitions, **{**fields, **given})
