"""Measuring a policy on held-out tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spangrad.gateway import SamplingOverride
from spangrad.rollouts import RolloutJob, RolloutResult, Task
from spangrad.training._statistics import Proportion, proportion
from spangrad.transitions import RolloutStatus

GREEDY = SamplingOverride(temperature=0.0, top_p=1.0, top_k=0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one held-out set gave after a training step."""

    heldout: str
    step: int
    policy_versions: Mapping[str, int]
    """Of each policy."""
    success: Proportion
    """Rollouts with at least the reward that counts as a success; a failed rollout is no success."""
    reward_mean: float
    """Mean over all tasks; a rollout without a reward counts as 0 here, and is counted in `unrewarded`."""
    unrewarded: int

    def as_json(self) -> dict[str, Any]:
        """As it stands in summary.json and, flat, in metrics.jsonl."""
        return {
            "heldout": self.heldout,
            "step": self.step,
            "policy_versions": dict(self.policy_versions),
            "tasks": self.success.count,
            "successes": self.success.successes,
            "success": self.success.value,
            "success_low": self.success.low,
            "success_high": self.success.high,
            "reward_mean": self.reward_mean,
            "unrewarded": self.unrewarded,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Evaluation:
        """Reads back what `as_json` wrote."""
        return cls(
            heldout=record["heldout"],
            step=record["step"],
            policy_versions=record["policy_versions"],
            success=proportion(record["successes"], record["tasks"]),
            reward_mean=record["reward_mean"],
            unrewarded=record["unrewarded"],
        )


def evaluation_jobs(heldout: str, tasks: Sequence[Task], step: int) -> list[RolloutJob]:
    """One greedy rollout per task."""
    return [
        RolloutJob(
            rollout_id=f"evaluate-{step:05d}-{heldout}-{path_safe(task.task_id)}",
            attempt=1,
            group_id=f"evaluate-{step:05d}-{heldout}-{path_safe(task.task_id)}",
            task=task,
            phase="evaluate",
            step=step,
            sampling=GREEDY,
        )
        for task in tasks
    ]


def evaluation(
    heldout: str, step: int, policy_versions: Mapping[str, int], results: Sequence[RolloutResult], *, success_at: float
) -> Evaluation:
    """Counts what came back."""
    rewards = [result.reward for result in results]
    given = [reward for reward in rewards if reward is not None]
    ended = [result.reward for result in results if result.status is RolloutStatus.SUCCEEDED]
    successes = sum(reward is not None and reward >= success_at - 1e-9 for reward in ended)
    return Evaluation(
        heldout=heldout,
        step=step,
        policy_versions=policy_versions,
        success=proportion(successes, len(results)),
        reward_mean=sum(given) / len(results),
        unrewarded=len(results) - len(given),
    )


def path_safe(text: str) -> str:
    """A task id as it can stand in a rollout id, and so in a URL; different ids stay different."""
    safe = re.sub(r"[^A-Za-z0-9._~-]+", "_", text)
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
