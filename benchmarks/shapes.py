"""Rollouts to learn from, made up: token ids and advantages, shaped as agents' calls are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from spangrad.backend import UpdateBatch
from spangrad.transitions import Transition, TransitionBatch

VOCABULARY: Final = 250
"""Few enough for any model, and enough that answers hardly ever begin alike."""
LEARNING_RATE: Final = 1e-6

Ids = tuple[int, ...]
Calls = Iterator[tuple[Ids, Ids]]
"""Prompt and answer of each call of a rollout."""


def batch(shape: str, *, small: bool) -> UpdateBatch:
    """The rollouts of one task of that shape, each with an advantage of its own."""
    at = random.Random(shape)
    make, rollouts = SHAPES[shape]
    calls = make(at)
    rows = [
        _transition(rollout, index, prompt[-12:] if small else prompt, answer[:3] if small else answer)
        for rollout in range(2 if small else rollouts)
        for index, (prompt, answer) in enumerate(calls())
    ]
    advantages = np.array([at.gauss(0, 1) for _ in range(rollouts)])
    lengths = np.array([len(row.action_ids) for row in rows])
    return UpdateBatch(
        transitions=TransitionBatch(tuple(rows)),
        learning_rate=LEARNING_RATE,
        advantages=np.array([advantages[int(row.rollout_id)] for row in rows]),
        token_weights=1.0 / (len(rows) * lengths),
    )


def _alone(at: random.Random) -> Callable[[], Calls]:
    """One call a rollout, no two prompts alike: nothing to share."""

    def calls() -> Calls:
        yield _ids(at, 168), _ids(at, 32)

    return calls


def _one_turn(at: random.Random) -> Callable[[], Calls]:
    """One call a rollout, all of one prompt."""
    prompt = _ids(at, 200)

    def calls() -> Calls:
        yield prompt, _ids(at, 32)

    return calls


def _tool_loop(at: random.Random) -> Callable[[], Calls]:
    """Four calls, each going on from the one before it and what a tool said: from_scratch, math_autogen, rag_openai_agents."""
    first = _ids(at, 120)

    def calls() -> Calls:
        prompt = first
        for _ in range(4):
            answer = _ids(at, 24)
            yield prompt, answer
            prompt += answer + _ids(at, 24)

    return calls


def _three_agents(at: random.Random) -> Callable[[], Calls]:
    """A writer, a checker and a rewriter that read what the others wrote: text_to_sql_langchain."""
    system, question = {agent: _ids(at, length) for agent, length in (("w", 130), ("c", 20), ("r", 130))}, _ids(at, 30)

    def calls() -> Calls:
        written, outcome = _ids(at, 30), _ids(at, 20)
        yield system["w"] + question, written
        yield system["c"] + question + written + outcome, _ids(at, 4)
        yield system["r"] + question + written + outcome, _ids(at, 30)

    return calls


def _branches(at: random.Random) -> Callable[[], Calls]:
    """A trunk of two calls, then three branches of two calls each: parallel tools, or tries after an error."""
    first = _ids(at, 120)

    def calls() -> Calls:
        trunk = first
        for _ in range(2):
            answer = _ids(at, 24)
            yield trunk, answer
            trunk += answer + _ids(at, 24)
        for _ in range(3):
            prompt = trunk
            for _ in range(2):
                answer = _ids(at, 24)
                yield prompt, answer
                prompt += answer + _ids(at, 16)

    return calls


def _system_only(at: random.Random) -> Callable[[], Calls]:
    """One call a rollout; the prompts have no more than the beginning in common."""
    system = _ids(at, 24)

    def calls() -> Calls:
        yield system + _ids(at, 144), _ids(at, 32)

    return calls


SHAPES: Final[dict[str, tuple[Callable[[random.Random], Callable[[], Calls]], int]]] = {
    "nothing shared": (_alone, 16),
    "system prompt shared": (_system_only, 16),
    "one turn": (_one_turn, 16),
    "tool loop": (_tool_loop, 4),
    "three agents": (_three_agents, 8),
    "branches": (_branches, 2),
}
"""Each shape's way to make rollouts, and how many of them."""


def _ids(at: random.Random, count: int) -> Ids:
    """Random tokens."""
    return tuple(at.randrange(5, VOCABULARY) for _ in range(count))


def _transition(rollout: int, index: int, prompt: Ids, answer: Ids) -> Transition:
    """A call as extraction gives it."""
    return Transition(
        rollout_id=str(rollout),
        attempt=1,
        group_id="task",
        call_id=f"{rollout}-{index}",
        choice=0,
        index=index,
        agent=None,
        policy="policy",
        policy_version=1,
        prompt_ids=prompt,
        action_ids=answer,
        logprobs=(-1.0,) * len(answer),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        reward=None,
        rollout_reward=0.0,
    )
