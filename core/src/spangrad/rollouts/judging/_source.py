"""What judges a rollout that has ended, and what it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spangrad.errors import RewardError
from spangrad.rollouts._json_data import problem_of


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A rollout whose agent has ended by itself."""

    rollout_id: str
    attempt: int
    task_id: str
    task: Any
    """The task's data."""
    output: Any
    """What the agent returned, or a command printed."""

    def output_json(self) -> str:
        """The output as JSON text.

        Raises:
            RewardError: JSON cannot carry it.
        """
        if (problem := problem_of(self.output)) is not None:
            raise RewardError(
                f"What the agent returned cannot be sent to a judge: {problem}",
                cure="Let the agent return text, numbers, lists or mappings",
            )
        return json.dumps(self.output)

    def output_text(self) -> str:
        """The output as people would read it: text as it is, all else as JSON.

        Raises:
            RewardError: JSON cannot carry it.
        """
        text = self.output_json()
        return self.output if isinstance(self.output, str) else text


class RewardSource(Protocol):
    """Gives rewards for the output of a rollout."""

    @property
    def name(self) -> str:
        """As it stands in `RewardRecord.source`: evaluator, check, judge."""
        ...

    async def rewards(self, rollout: FinishedRollout, *, limit: float | None) -> Mapping[str, float]:
        """The rewards by name; never a guess.

        Args:
            rollout: what is judged.
            limit: seconds it may take, waiting for its turn not counted; None does not limit.

        Raises:
            RewardError: there is none, with what went wrong.
        """
        ...

    def close(self) -> None:
        """Ends what is kept alive; harmless when there is nothing."""
        ...
