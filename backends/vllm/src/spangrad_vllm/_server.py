"""One place in a pool: the server that is there now, and the answers it draws."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from spangrad.backend import ServedModel
from spangrad.gateway import EndpointSampler
from spangrad_vllm._command import BASE
from spangrad_vllm._control import Control
from spangrad_vllm._process import ServerProcess


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers, and its process if it is ours."""

    url: str
    process: ServerProcess | None = None


class Server:
    """A server and what is known of it. Belongs to one event loop.

    Args:
        number: of its place in the pool.
        address: where it is.
        model: what it serves.
        context: most tokens of a prompt and its answer.
        weights_timeout: seconds that taking weights may last.
    """

    def __init__(
        self, number: int, address: Address, model: ServedModel, *, context: int, weights_timeout: float
    ) -> None:
        self.number = number
        self.url = address.url
        self.process = address.process
        self.control = Control(address.url, weights_timeout=weights_timeout)
        self.base = BASE
        """What it calls its own model."""
        self.up = False
        """It draws with the present weights."""
        self.doubted = asyncio.Event()
        """Set where an answer broke off, until its health has been seen to."""
        self.seats: set[Seat] = set()
        """One for each answer it draws."""
        self._model = model
        self._context = context
        self._samplers: dict[str, EndpointSampler] = {}

    def sampler(self, name: str) -> EndpointSampler:
        """Draws with what the server serves under that name; `BASE` is its own model."""
        if name not in self._samplers:
            self._samplers[name] = EndpointSampler(
                f"{self.url}/v1",
                self.base if name == BASE else name,
                context_length=self._context,
                policy_version=0,  # the answer stamps its tokens itself
                end_ids=self._model.end_ids,
            )
        return self._samplers[name]

    async def forget(self, name: str) -> None:
        """Nothing is drawn under that name any more."""
        if (sampler := self._samplers.pop(name, None)) is not None:
            await sampler.close()

    async def end(self) -> None:
        """Hangs up, and ends its process if it is ours."""
        self.up = False
        for name in list(self._samplers):
            await self.forget(name)
        await self.control.close()
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)


@dataclass(eq=False)
class Seat:
    """An answer's place at a server, until the server or the weights change."""

    server: Server
    policy: str | None
    name: str
    """What the server calls the policy's weights."""
    version: int
    task: asyncio.Task[Any] | None = field(default=None)
    """Reads the answer; cancelled to let it go on elsewhere, or with other weights."""
