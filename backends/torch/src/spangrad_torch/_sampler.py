"""Draws answers from the shared model, many at a time. (Signatures first; the body is being written.)"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spangrad.backend import SampleDelta, SampleRequest
from spangrad_torch._model import LoadedModel


class TorchSampler:
    """Continuous batching over one model; implements `spangrad.backend.Sampler`.

    Args:
        loaded: the model; shared with the learner, which changes its weights in place while the sampler is paused.
        max_rows: most answers drawn at a time.
        prefix_cache_mb: memory for keys and values of prompts seen before.
        threads: torch threads of the worker; None leaves torch's default.
        autocast: compute in this lower precision while the weights stay as they are (None: as they are).
        seed: where requests without a seed get theirs from.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_rows: int = 64,
        prefix_cache_mb: int = 256,
        threads: int | None = None,
        autocast: "torch.dtype | None" = None,
        seed: int = 0,
    ) -> None: ...

    @property
    def context_length(self) -> int: ...

    @property
    def policy_version(self) -> int:
        """Stamped on every token from the next step on; set it inside `paused()`, right after changing the weights."""

    @policy_version.setter
    def policy_version(self, version: int) -> None: ...

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleDelta]: ...

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No forward pass runs inside. On leaving, everything cached is dropped and running rows are prefilled anew."""
        yield

    async def close(self) -> None:
        """Stops the worker; requests still open fail with BackendError."""
