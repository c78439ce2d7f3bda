"""The table [rewards.overlong]."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from spangrad.rollouts import Overlong
from spangrad.training._table import Positive, Reward, Table


class OverlongTable(Table):
    """A penalty for rollouts that take too many tokens, after DAPO."""

    max_tokens: Positive
    """Sampled tokens of a rollout, all its calls together, from which on the whole penalty is due."""
    cache: Positive
    """The last of them over which it grows from nothing."""
    penalty: Annotated[Reward, Field(gt=0)] = 1.0
    """Its size."""

    @model_validator(mode="after")
    def _within(self) -> OverlongTable:
        if self.cache > self.max_tokens:
            raise ValueError(f"cache is {self.cache}, more than max_tokens = {self.max_tokens}")
        return self

    def as_overlong(self) -> Overlong:
        """The same as judges take it."""
        return Overlong(self.max_tokens, self.cache, self.penalty)
