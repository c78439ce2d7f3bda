"""Sampled answers that can be trained on, and the rewards of their rollout, put together as transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spangrad.transitions._call import Call
from spangrad.transitions._reward_weights import RewardWeights, components_of
from spangrad.transitions._rollout import RewardRecord, RolloutRecord
from spangrad.transitions._transition import Transition


@dataclass(frozen=True, slots=True)
class Sample:
    """What a transition needs of a call and its choice, known to be there."""

    call: Call
    choice: int
    policy: str
    policy_version: int
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rewarding:
    """The rewards of one attempt by name, and what they count."""

    rollout: Mapping[str, float]
    calls: Mapping[str, Mapping[str, float]]
    """By call id."""
    weights: RewardWeights

    @classmethod
    def of(cls, rewards: Iterable[RewardRecord], weights: RewardWeights) -> Rewarding:
        """Sorts the rewards of an attempt by what they reward."""
        by_call: dict[str | None, list[RewardRecord]] = {}
        for reward in rewards:
            by_call.setdefault(reward.call_id, []).append(reward)
        whole = components_of(by_call.pop(None, ()))
        return cls(whole, {str(call_id): components_of(own) for call_id, own in by_call.items()}, weights)

    @property
    def of_rollout(self) -> float:
        """What the rollout's own rewards come to."""
        return self.weights.total(self.rollout)

    def of_call(self, call_id: str) -> float | None:
        """What a call's rewards come to; None when it has none."""
        components = self.calls.get(call_id)
        return self.weights.total(components) if components else None


def transitions_of(
    rollout: RolloutRecord, samples: Sequence[Sample], rewarding: Rewarding, agents: Mapping[str, str | None]
) -> tuple[Transition, ...]:
    """The samples of an attempt as transitions; of several choices of a call the first carries its rewards.

    Args:
        rollout: the attempt.
        samples: in the order their calls were received.
        rewarding: its rewards.
        agents: who made each call, by call id.
    """
    depths, whole = _depths(samples), rewarding.of_rollout
    left = dict(rewarding.calls)
    components = [left.pop(sample.call.call_id, {}) for sample in samples]  # popped: the first choice has them
    return tuple(
        Transition(
            rollout_id=rollout.rollout_id,
            attempt=rollout.attempt,
            group_id=rollout.group_id,
            call_id=sample.call.call_id,
            choice=sample.choice,
            index=index,
            agent=agents[sample.call.call_id],
            policy=sample.policy,
            policy_version=sample.policy_version,
            prompt_ids=sample.prompt_ids,
            action_ids=sample.action_ids,
            logprobs=sample.logprobs,
            temperature=sample.call.temperature,
            top_p=sample.call.top_p,
            top_k=sample.call.top_k,
            reward=rewarding.weights.total(components[index]) if components[index] else None,
            rollout_reward=whole,
            depth=depths[sample.call.call_id],
            state=sample.call.state,
            score=sample.call.score,
            components=components[index],
            rollout_components=rewarding.rollout,
        )
        for index, sample in enumerate(samples)
    )


def _depths(samples: Sequence[Sample]) -> dict[str, int]:
    """Each call's step of the rollout, by call id: one more than the deepest call that had ended when it was received."""
    depths: dict[str, int] = {}
    ended: list[tuple[float, int]] = []
    for call in (sample.call for sample in samples):
        if call.call_id not in depths:
            depth = 1 + max((depth for end, depth in ended if end <= call.received_at), default=-1)
            depths[call.call_id] = depth
            ended.append((call.received_at if call.finished_at is None else call.finished_at, depth))
    return depths
