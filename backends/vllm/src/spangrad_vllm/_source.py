"""Where a pool's servers come from: started by us, or running already."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final, Protocol

from spangrad.backend import ServedModel
from spangrad.errors import BackendError
from spangrad_vllm._command import server_command
from spangrad_vllm._installation import Installation, check_version
from spangrad_vllm._options import VllmOptions
from spangrad_vllm._process import ServerProcess
from spangrad_vllm._server import Address, Server
from spangrad_vllm._untied import is_tied

_POLL_SECONDS: Final = 0.25


class Source(Protocol):
    """Gives a server for each place of a pool."""

    async def open(self, number: int, folder: Path) -> tuple[Address, Path | None]:
        """A server for the place, and the weights it begins with, where they are known.

        Raises:
            BackendError: there cannot be one.
        """
        ...

    async def greet(self, server: Server) -> None:
        """Makes sure of a server that has just become healthy.

        Raises:
            BackendError: it cannot be used.
        """
        ...


class Starter:
    """Starts servers.

    Args:
        installation: the vLLM.
        options: the sampler's table.
        model: what they serve.
        logs: folder of their logs.
        first: number of the first place, among all of the pools.
        label: of the pool, in the logs' names.
    """

    def __init__(
        self,
        installation: Installation,
        options: VllmOptions,
        model: ServedModel,
        *,
        logs: Path,
        first: int = 0,
        label: str = "vllm",
    ) -> None:
        self._installation = installation
        self._options = options
        self._model = model
        self._logs = logs
        self._first = first
        self._label = label

    async def open(self, number: int, folder: Path) -> tuple[Address, Path | None]:
        """Starts one, which does not answer yet."""
        port = _free_port()
        command = server_command(
            self._installation, self._options, self._model, number=self._first + number, port=port, folder=folder
        )
        log = self._logs / f"{self._label}-{number}.log"
        # In this thread, which lives as long as the servers do.
        try:
            process = ServerProcess(command, log=log, handover=self._model.handover)
        except OSError as error:
            raise BackendError(
                f"A vLLM server cannot be started: {error}",
                cure="Its log and this Python have to be there as long as the run lasts; log_folder names a place for logs",
            ) from error
        return Address(f"http://127.0.0.1:{port}", process), folder

    async def greet(self, server: Server) -> None:
        """Nothing: it was started as it has to be."""


class Attached:
    """Servers that others started.

    Args:
        urls: of each place's server.
        model: what they have to serve.
        context: most tokens of a prompt and its answer.
    """

    def __init__(self, urls: tuple[str, ...], model: ServedModel, *, context: int) -> None:
        self._urls = urls
        self._model = model
        self._context = context

    async def open(self, number: int, folder: Path) -> tuple[Address, Path | None]:  # noqa: ARG002 - the protocol's
        """The one of that place."""
        return Address(self._urls[number]), None

    async def greet(self, server: Server) -> None:
        """Checks what servers of our own are started with."""
        check_version(await server.control.version(), f"the server {server.url}")
        server.base, most = await server.control.model()
        if most is not None and most < self._context:
            raise BackendError(
                f"The server {server.url} takes {most} tokens, and the model's context is {self._context}",
                cure=f"Start it with --max-model-len {self._context}, or set context = {most}",
            )
        settings = await server.control.settings()
        mode = settings.get("model_config", {}).get("logprobs_mode")
        if mode != "processed_logprobs":
            raise BackendError(
                f"The server {server.url} reports log-probabilities as {mode}, not of the distribution it draws from",
                cure="Start it with --logprobs-mode processed_logprobs",
            )
        if settings.get("device_config", {}).get("device_type") == "cpu" and is_tied(self._model.folder):
            self._refuse_tied(server, settings.get("model_config", {}).get("model"))

    def _refuse_tied(self, server: Server, served: str | None) -> None:
        """Refuses to reload a model whose output layer is its embedding on a CPU, where vLLM keeps the old one (`_untied`)."""
        why = f"The server {server.url} computes on a CPU, where vLLM cannot take new weights of a model whose output layer is its embedding"
        if self._model.adapter_rank is None:
            raise BackendError(
                why,
                cure='Leave urls out, so that the servers are started as it needs, or train adapters (adapter = "lora")',
            )
        if served is not None and Path(served).resolve() != self._model.folder.resolve():
            raise BackendError(f"{why}, and it serves {served}", cure=f"Start it with --model {self._model.folder}")


async def until_healthy(server: Server, seconds: float) -> None:
    """Returns when the server answers.

    Raises:
        BackendError: it has not in time, or its process ended; with the last lines of its log.
    """
    try:
        async with asyncio.timeout(seconds):
            while not await server.control.healthy():
                if server.process is not None and server.process.end is not None:
                    raise BackendError(
                        f"A vLLM server ended while starting {server.process.how_it_ended()}",
                        cure="See why below" + server.process.last_lines(),
                    )
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        lines = "" if server.process is None else server.process.last_lines()
        raise BackendError(
            f"The vLLM server {server.url} has not answered within {seconds:g} s",
            cure=f"Raise start_timeout if it only needs longer{lines}",
        ) from error


def _free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
