"""The bodies of the rollout routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from spangrad.capture import problem_of_id
from spangrad.gateway._access import SamplingOverride
from spangrad.gateway._engine import EngineError
from spangrad.gateway._request import complaint, read_json


def _usable(given: str) -> str:
    if (problem := problem_of_id(given)) is not None:
        raise ValueError(f"this {problem}")
    return given


Id = Annotated[str, AfterValidator(_usable)]


class _Body(BaseModel):
    """Unknown fields are errors: a misspelt reward must not be lost."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parses a request's body.

        Raises:
            EngineError: 400, naming every field that is wrong.
        """
        try:
            return cls.model_validate(read_json(data or b"{}"))
        except ValidationError as error:
            raise EngineError(complaint(error), status=400) from error


class SamplingBody(_Body):
    """What the rollout's calls are held to."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None

    def override(self) -> SamplingOverride:
        """The same as the gateway keeps it."""
        return SamplingOverride(**self.model_dump())


class OpenBody(_Body):
    """`POST /rollouts`."""

    task_id: Id = "ad-hoc"
    rollout_id: Id | None = None
    """Made up when missing."""
    attempt: int = Field(default=1, ge=0)
    group_id: Id | None = None
    """The rollout's own id when missing."""
    phase: str = "collect"
    sampling: SamplingBody = SamplingBody()


class FinishBody(_Body):
    """`POST /rollouts/{id}/attempts/{n}/finish`."""

    status: Literal["succeeded", "failed", "timed_out", "infrastructure", "lost"] = "succeeded"
    error: str = ""
    output: Any = None
    """What the agent returned."""


class RewardBody(_Body):
    """`POST /rollouts/{id}/attempts/{n}/rewards`."""

    value: Any
    """Judged by the same rule as rewards given in process."""
    name: str = Field(default="reward", min_length=1)
    call_id: str | None = None
    """The call it rewards; without one it rewards the rollout."""
    source: str = "http"
