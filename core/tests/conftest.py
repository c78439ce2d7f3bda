"""Builders of records, shared by the tests of core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest

from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions import Call, CallStatus, Choice, Transition, TransitionBatch

RolloutShape = tuple[str, float, Sequence[int]]
"""A rollout in short: its group, its reward, and the sampled tokens of each of its calls."""


class MakeBatch(Protocol):
    """Makes a batch of rollouts; `call_rewards` and `depths` are keyed by (rollout, call), both counted from 0."""

    def __call__(
        self,
        rollouts: Sequence[RolloutShape],
        *,
        call_rewards: Mapping[tuple[int, int], float] | None = None,
        depths: Mapping[tuple[int, int], int] | None = None,
    ) -> TransitionBatch: ...


@pytest.fixture(scope="session")
def make_transition_batch() -> MakeBatch:
    def make(
        rollouts: Sequence[RolloutShape],
        *,
        call_rewards: Mapping[tuple[int, int], float] | None = None,
        depths: Mapping[tuple[int, int], int] | None = None,
    ) -> TransitionBatch:
        return TransitionBatch(
            tuple(
                Transition(
                    rollout_id=f"rollout-{r}",
                    attempt=0,
                    group_id=group,
                    call_id=f"call-{r}-{c}",
                    choice=0,
                    index=c,
                    agent=None,
                    policy="policy",
                    policy_version=0,
                    prompt_ids=(1, 2, 3),
                    action_ids=tuple(range(tokens)),
                    logprobs=(-1.0,) * tokens,
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    reward=(call_rewards or {}).get((r, c)),
                    rollout_reward=reward,
                    depth=(depths or {}).get((r, c)),
                )
                for r, (group, reward, calls) in enumerate(rollouts)
                for c, tokens in enumerate(calls)
            )
        )

    return make


class MakeRollout(Protocol):
    """Makes the record of a rollout that succeeded, with the named fields set otherwise."""

    def __call__(self, **fields: Any) -> RolloutRecord: ...


@pytest.fixture(scope="session")
def make_rollout_record() -> MakeRollout:
    def make(**fields: Any) -> RolloutRecord:
        usual: dict[str, Any] = {
            "rollout_id": "rollout-0",
            "attempt": 0,
            "task_id": "task-0",
            "group_id": "group-0",
            "phase": "train",
            "step": 1,
            "status": RolloutStatus.SUCCEEDED,
            "error": "",
            "output": "",
            "started_at": 100.0,
            "finished_at": 200.0,
        }
        return RolloutRecord(**usual | fields)

    return make


class MakeReward(Protocol):
    """Makes a reward of 1 for rollout-0, with the named fields set otherwise."""

    def __call__(self, **fields: Any) -> RewardRecord: ...


@pytest.fixture(scope="session")
def make_reward_record() -> MakeReward:
    def make(**fields: Any) -> RewardRecord:
        usual: dict[str, Any] = {
            "rollout_id": "rollout-0",
            "attempt": 0,
            "call_id": None,
            "name": "reward",
            "value": 1.0,
            "source": "return_value",
            "at": 200.0,
        }
        return RewardRecord(**usual | fields)

    return make


class MakeCall(Protocol):
    """Makes a call of rollout-0, received and answered at second `number`, with the named fields set otherwise."""

    def __call__(self, number: int, **fields: Any) -> Call: ...


@pytest.fixture(scope="session")
def make_call() -> MakeCall:
    def make(number: int, **fields: Any) -> Call:
        call_id = fields.get("call_id", f"call-{number}")
        usual: dict[str, Any] = {
            "call_id": call_id,
            "rollout_id": "rollout-0",
            "attempt": 0,
            "request_key": call_id,
            "retry": 0,
            "received_at": 100.0 + number,
            "finished_at": 100.5 + number,
            "model": "agent-model",
            "policy": "policy",
            "policy_version": 4,
            "endpoint": "engine",
            "agent": None,
            "status": CallStatus.OK,
            "reason": "",
            "prompt_ids": (1, 2, 3),
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "request": {"messages": [{"role": "user", "content": f"question {number}"}]},
            "choices": (make_choice(),),
        }
        return Call(**usual | fields)

    return make


def make_choice(index: int = 0, token_ids: tuple[int, ...] = (7, 8), logprobs: tuple[float, ...] = (-0.5, -0.25)) -> Choice:
    """An answer of two tokens."""
    return Choice(index, token_ids, logprobs, "stop", {"role": "assistant", "content": "answer"})
