"""What servers draw with, and how that is exchanged: all weights at once, or adapters beside the model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spangrad_vllm._command import BASE
from spangrad_vllm._server import Server
from spangrad_vllm._untied import untie


class Crew(Protocol):
    """The servers that are up."""

    async def each(self, do: Callable[[Server], Awaitable[None]]) -> None:
        """Does something with every one; one that fails is no longer up.

        Raises:
            BackendError: a server refused.
        """
        ...

    def held(self) -> AbstractAsyncContextManager[None]:
        """No answer is drawn inside; those under way go on afterwards."""
        ...

    async def move(self, policy: str) -> None:
        """Lets a policy's answers under way go on with what is present now."""
        ...


class Weights(Protocol):
    """What servers draw with at present."""

    @property
    def opening(self) -> Path:
        """Folder of the weights that a server is started with now."""
        ...

    def present(self, policy: str | None) -> tuple[str, int]:
        """What servers call a policy's weights, and their version; None is the model as it was loaded."""
        ...

    async def bring(self, server: Server, opened: Path | None) -> None:
        """Lets a server that is not up yet have the present weights.

        Args:
            server: it.
            opened: with which `opening` it was started; None where it was not we who started it.
        """
        ...

    async def exchange(self, crew: Crew, policy: str, folder: Path, version: int) -> None:
        """Takes other weights of a policy."""
        ...


class FullWeights:
    """All weights, of one policy. Answers wait while they are exchanged, which is when servers hold no others.

    Args:
        folder: those to begin with.
        untied: folder for models made with an output layer of their own (`_untied`); None where servers need none.
    """

    def __init__(self, folder: Path, *, untied: Path | None = None) -> None:
        self._untied = untied
        self._version = 0
        self._folder = self._servable(folder)

    @property
    def opening(self) -> Path:
        """The present weights."""
        return self._folder

    def present(self, policy: str | None) -> tuple[str, int]:  # noqa: ARG002 - it serves one
        """Always the server's own model."""
        return BASE, self._version

    async def bring(self, server: Server, opened: Path | None) -> None:
        """Reloads, unless it was started with the present weights."""
        if opened != self._folder:
            await server.control.reload(self._folder)

    async def exchange(self, crew: Crew, policy: str, folder: Path, version: int) -> None:  # noqa: ARG002 - as above
        """Holds answers, reloads, and lets them go on."""
        servable = await asyncio.to_thread(self._servable, folder)
        async with crew.held():
            old, self._folder, self._version = self._folder, servable, version
            await crew.each(lambda server: server.control.reload(servable))
        if self._untied is not None and old.parent == self._untied:
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    def _servable(self, folder: Path) -> Path:
        return folder if self._untied is None else untie(folder, self._untied / folder.name)


@dataclass(frozen=True, slots=True)
class _Adapter:
    name: str
    folder: Path
    version: int


class AdapterWeights:
    """An adapter for each policy beside the model.

    A version is served under a name of its own, the new one before the old one goes: nobody waits, and nothing computed with the old
    one can be taken for the new one's (vLLM keeps keys and values by the adapter's name).

    Args:
        folder: of the model.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._adapters: dict[str, _Adapter] = {}

    @property
    def opening(self) -> Path:
        """The model's, always."""
        return self._folder

    def present(self, policy: str | None) -> tuple[str, int]:
        """The policy's adapter, or the model as long as there is none."""
        adapter = None if policy is None else self._adapters.get(policy)
        return (BASE, 0) if adapter is None else (adapter.name, adapter.version)

    async def bring(self, server: Server, opened: Path | None) -> None:
        """Loads all adapters; into a server that others started, the model too."""
        if opened is None:
            await server.control.reload(self._folder)
        for adapter in self._adapters.values():
            await server.control.load_adapter(adapter.name, adapter.folder)

    async def exchange(self, crew: Crew, policy: str, folder: Path, version: int) -> None:
        """Loads the new one, lets answers go on with it, and unloads the old one."""
        old = self._adapters.get(policy)
        new = _Adapter(f"{policy}@{version}", folder, version)
        await crew.each(lambda server: server.control.load_adapter(new.name, folder))
        self._adapters[policy] = new
        await crew.move(policy)
        if old is not None:
            await crew.each(lambda server: _unload(server, old.name))


async def _unload(server: Server, name: str) -> None:
    await server.forget(name)
    await server.control.unload_adapter(name)
