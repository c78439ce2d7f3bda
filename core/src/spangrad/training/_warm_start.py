"""Demonstrations as transitions: what an agent's model was asked, and what it should have answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spangrad.backend import ChatFormat, UpdateBatch
from spangrad.gateway import shown_tools
from spangrad.transitions import Transition, TransitionBatch


def demonstrated(
    conversations: Sequence[Mapping[str, Any]], chat_format: ChatFormat, *, policies: Sequence[str]
) -> tuple[tuple[Transition, ...], ...]:
    """One transition per assistant message of each conversation and policy, prompts rendered as the gateway renders them.

    Args:
        conversations: {"messages": [...], "tools": [...]} each, as in OpenAI's fine-tuning format; "policy" names the one
            that is to learn it, else all do.
        chat_format: of the policies.
        policies: their names.
    """
    return tuple(
        tuple(
            Transition(
                rollout_id=f"demonstration-{number:05d}",
                attempt=1,
                group_id=f"demonstration-{number:05d}",
                call_id=f"demonstration-{number:05d}-{position}",
                choice=0,
                index=index,
                agent=None,
                policy=policy,
                policy_version=0,
                prompt_ids=chat_format.render(
                    conversation["messages"][:position], tools=shown_tools(conversation.get("tools") or ())
                ),
                action_ids=(action := chat_format.render_answer(conversation["messages"][position])),
                logprobs=(0.0,) * len(action),
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                reward=None,
                rollout_reward=0.0,
            )
            for policy in ([conversation["policy"]] if "policy" in conversation else policies)
            for index, position in enumerate(_assistant_positions(conversation["messages"]))
        )
        for number, conversation in enumerate(conversations)
    )


def imitation_batches(transitions: Sequence[Transition], learning_rate: float) -> dict[str, UpdateBatch]:
    """For each policy a batch whose loss is the mean negative log-likelihood of all tokens demonstrated to it."""
    whole = TransitionBatch(tuple(transitions))
    names = dict.fromkeys(transition.policy for transition in transitions)
    return {name: _imitation_batch(whole.select(whole.policies == name), learning_rate) for name in names}


def _imitation_batch(batch: TransitionBatch, learning_rate: float) -> UpdateBatch:
    tokens = int(batch.action_lengths.sum())
    return UpdateBatch(
        transitions=batch,
        learning_rate=learning_rate,
        advantages=np.zeros(len(batch)),
        token_weights=np.full(len(batch), 1.0 / tokens),
    )


def ramped(learning_rate: float, step: int, ramp_steps: int) -> float:
    """The learning rate of a step (from 1), rising linearly over the first `ramp_steps`."""
    return learning_rate * min(1.0, step / (ramp_steps + 1))


def _assistant_positions(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [position for position, message in enumerate(messages) if message["role"] == "assistant"]
