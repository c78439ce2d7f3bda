"""A policy that servers draw from: its weights go over when they are published, in a folder that both can read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import cast

from torch import Tensor

from spangrad.backend import SampleDelta, SampleRequest, ServedPolicy

Write = Callable[[Mapping[str, Tensor], Path], None]
"""Puts trained weights into a new folder, in the form that servers take."""


class ServedSampler:
    """One policy; implements `spangrad.backend.Sampler`, and what the learner needs of one.

    Args:
        served: draws.
        policy: its name.
        folder: where its weights are put.
        write: puts them there.
    """

    def __init__(self, served: ServedPolicy, policy: str, folder: Path, write: Write) -> None:
        self._served = served
        self._policy = policy
        self._folder = folder
        self._write = write
        self._given: Path | None = None
        """Folder of the weights that servers draw with."""

    @property
    def policy_version(self) -> int:
        """Of the weights that servers draw with."""
        return self._served.policy_version

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return self._served.context_length

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """See `spangrad.backend.Sampler.sample`."""
        async with aclosing(cast("AsyncGenerator[SampleDelta, None]", self._served.sample(request))) as deltas:
            async for delta in deltas:
                yield delta

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nothing to wait for: the learner's weights are its own."""
        yield

    def changed(self, version: int) -> None:
        """Nothing: servers draw with their own weights until they take others."""

    async def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Lets servers draw with the learner's weights, where these are others than the ones they have.

        Raises:
            BackendError: no server takes them.
            CheckpointError: there is no room for them.
        """
        if version == self.policy_version:
            return
        folder = self._folder / f"{self._policy}-{version}"
        await asyncio.to_thread(self._write, weights, folder)
        await self._served.take(folder, version)
        given, self._given = self._given, folder
        if given is not None:
            await asyncio.to_thread(shutil.rmtree, given, ignore_errors=True)

    async def close(self) -> None:
        """Nothing: the servers are closed with the backend."""
