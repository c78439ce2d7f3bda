"""Stands for the servers of a policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from spangrad.backend import SampleDelta, SampleRequest


class FakeServed:
    """Servers that only note which weights they are given."""

    context_length = 512

    def __init__(self) -> None:
        self.policy_version = 0
        self.weights: dict[str, Any] = {}
        self.files: set[str] = set()

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleDelta]:
        raise NotImplementedError(f"nothing is drawn here: {request}")

    async def take(self, folder: Path, version: int) -> None:
        from safetensors.torch import load_file

        self.files = {file.name for file in folder.iterdir()}
        self.weights = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
        self.policy_version = version
