"""The table [failures]: what is done about rollouts that fail."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from spangrad.training._table import Positive, Reward, Table
from spangrad.transitions import FailureKind, FailurePolicies, FailurePolicy, Treatment

_OPTION: Final = {"penalise": "reward", "retry": "attempts"}
"""What a policy needs to be told; the others need nothing, and take nothing."""


class FailureTable(Table):
    """What is done about one kind of failure, as text ("drop") or as a table ({policy = "retry", attempts = 3})."""

    policy: Literal["drop", "retry", "penalise", "keep"]
    reward: Reward | None = None
    """For penalise: what the rollout gets, beside what it was given on its way."""
    attempts: Annotated[int, Field(ge=2)] | None = None
    """For retry: most attempts at a rollout, the first included."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_of_its_policy(self) -> FailureTable:
        needed = _OPTION.get(self.policy)
        for option in _OPTION.values():
            given = getattr(self, option) is not None
            if given and option != needed:
                raise ValueError(f"{self.policy!r} does not use {option}; it would do nothing")
            if not given and option == needed:
                raise ValueError(f"{self.policy!r} needs {option}")
        return self

    def as_policy(self) -> FailurePolicy:
        """The same as the runner takes it."""
        return FailurePolicy(Treatment(self.policy), reward=self.reward or 0.0, attempts=self.attempts or 1)


_DROP: Final = FailureTable(policy="drop")


class FailuresTable(Table):
    """What is done about each kind of failure, and about the group it leaves a gap in."""

    failed: FailureTable = _DROP
    timed_out: FailureTable = _DROP
    infrastructure: FailureTable = _DROP
    empty: FailureTable = _DROP
    unrewarded: FailureTable = _DROP
    groups: Literal["rest", "refill"] = "rest"
    """Statistics over what is left of a group, or new rollouts of its task in the place of those dropped."""
    refill_limit: Positive = 2
    """How often at most new rollouts are run for a group in a step."""

    @model_validator(mode="after")
    def _nothing_idle(self) -> FailuresTable:
        if self.empty.policy in {"penalise", "keep"}:
            raise ValueError(f"empty = {self.empty.policy!r} would do nothing: there is no token to train on")
        if self.groups == "rest" and "refill_limit" in self.model_fields_set:
            raise ValueError('refill_limit would do nothing without groups = "refill"')
        return self

    def policies(self) -> FailurePolicies:
        """The same as the runner takes it."""
        return FailurePolicies({kind: getattr(self, kind.value).as_policy() for kind in FailureKind})
