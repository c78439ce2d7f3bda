"""The MDP's transition, and a ragged batch of them.

Axis letters: T transitions, R rollouts, K sampled tokens of the whole batch, P prompt tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Transition:
    """(observation, action, reward) of one call of a trained policy (arXiv 2508.03680, section 3)."""

    rollout_id: str
    attempt: int
    group_id: str
    call_id: str
    choice: int
    index: int
    """Position among the rollout's transitions, in the order the calls were received."""
    agent: str | None
    policy: str
    policy_version: int
    prompt_ids: tuple[int, ...]
    """Observation: the exact token ids the engine was prompted with."""
    action_ids: tuple[int, ...]
    """Action: the sampled token ids."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each action id; as long as `action_ids`."""
    temperature: float
    top_p: float
    top_k: int
    reward: float | None
    """The call's own reward; None when only the rollout was rewarded."""
    rollout_reward: float
    """The rollout-scope reward of the rollout this call belongs to."""
    depth: int | None = None
    """Step of the rollout the call was made in, from 0: one more than the deepest call that had ended before this one was
    received, so calls made side by side share a depth. None when only the order of the calls is known."""
    state: str | None = None
    """What the agent called the state of its environment when it made the call: equal texts mean the same state. None when it
    did not say."""
    score: float | None = None
    """How far the agent had come in that state, on a scale of its own; None when it did not say."""
    components: Mapping[str, float] = field(default_factory=dict)
    """The call's own rewards by name, before any weights; `reward` is their weighted sum."""
    rollout_components: Mapping[str, float] = field(default_factory=dict)
    """The rollout's rewards by name, likewise; `rollout_reward` is their weighted sum."""


@dataclass(frozen=True)
class TransitionBatch:
    """Transitions laid out flat: no padding, offsets instead."""

    transitions: tuple[Transition, ...]

    def __len__(self) -> int:
        return len(self.transitions)

    @cached_property
    def rollout_keys(self) -> tuple[tuple[str, int], ...]:
        """The distinct (rollout, attempt) pairs in order of first appearance (R)."""
        return tuple((t.rollout_id, t.attempt) for t in self._rollouts[0])

    @property
    def rollout_index(self) -> IntArray:
        """(T,) which rollout each transition belongs to."""
        return self._rollouts[1]

    @cached_property
    def group_keys(self) -> tuple[str, ...]:
        """The distinct group ids in order of first appearance (G)."""
        return tuple(dict.fromkeys(t.group_id for t in self.transitions))

    @cached_property
    def group_index(self) -> IntArray:
        """(R,) which group each rollout belongs to."""
        position = {key: i for i, key in enumerate(self.group_keys)}
        return np.array([position[t.group_id] for t in self._rollouts[0]], dtype=np.int64)

    @cached_property
    def rollout_rewards(self) -> FloatArray:
        """(R,) the rollout-scope rewards."""
        return np.array([t.rollout_reward for t in self._rollouts[0]], dtype=np.float64)

    @cached_property
    def _rollouts(self) -> tuple[tuple[Transition, ...], IntArray]:
        """(R,) the first transition of each rollout, and (T,) which rollout each transition belongs to."""
        position: dict[tuple[str, int], int] = {}
        firsts: list[Transition] = []
        index: list[int] = []
        for t in self.transitions:
            at = position.setdefault((t.rollout_id, t.attempt), len(firsts))
            if at == len(firsts):
                firsts.append(t)
            index.append(at)
        return tuple(firsts), np.array(index, dtype=np.int64)

    @cached_property
    def call_rewards(self) -> FloatArray:
        """(T,) the call-scope rewards, 0 where a call has none."""
        return np.array([0.0 if t.reward is None else t.reward for t in self.transitions], dtype=np.float64)

    @cached_property
    def policies(self) -> NDArray[np.str_]:
        """(T,) name of the policy that each transition is of."""
        return np.array([t.policy for t in self.transitions], dtype=np.str_)

    @cached_property
    def action_lengths(self) -> IntArray:
        """(T,) sampled tokens per transition."""
        return np.array([len(t.action_ids) for t in self.transitions], dtype=np.int64)

    @cached_property
    def prompt_lengths(self) -> IntArray:
        """(T,) prompt tokens per transition."""
        return np.array([len(t.prompt_ids) for t in self.transitions], dtype=np.int64)

    def select(self, keep: BoolArray | Sequence[bool]) -> TransitionBatch:
        """The transitions where `keep` (T,) is true, in order."""
        if np.all(keep) and len(keep) == len(self):
            return self
        return TransitionBatch(tuple(t for t, k in zip(self.transitions, keep, strict=True) if k))
