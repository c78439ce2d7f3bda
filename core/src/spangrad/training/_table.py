"""What the tables of a train.toml have in common, and the kinds of numbers in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from spangrad.lightningrl import LARGEST


def _of_usable_size(reward: float) -> float:
    if abs(reward) > LARGEST:
        raise ValueError(f"is too large to be compared with other rewards; {LARGEST:g} is the limit")
    return reward


Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Reward = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_of_usable_size)]


class Table(BaseModel):
    """A table of the file: unknown keys are errors, and so are values of another type (no "8" for 8)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
