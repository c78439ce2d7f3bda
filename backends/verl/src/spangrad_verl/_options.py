"""The backend's own table of train.toml: `[verl]`. Imports neither torch nor verl."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class VerlOptions(BaseModel):
    """What spangrad itself decides about the backend; all else below `[verl]` is verl's own, by verl's names."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str = Field(default="smollm2-135m", min_length=1)
    """A Hugging Face folder, a .gguf file, or smollm2-135m."""
    sampler: str = Field(default="vllm", min_length=1)
    """Name of the plug-in that brings the servers to draw with; its settings are a table of that name within this one."""
    max_sequence: int = Field(default=4096, ge=2)
    """Most tokens of a prompt and its answer that are trained on; lowered to the model's context."""
    start_timeout: float = Field(default=600.0, gt=0, strict=False)
    """Seconds until Ray must have given the learner its workers."""

    @property
    def of_verl(self) -> dict[str, Any]:
        """verl's own options as they are written."""
        return dict(self.model_extra or {})
