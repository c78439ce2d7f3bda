"""The servers of a run, and what draws from them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spangrad.backend import SampleDelta, SampleRequest, ServedModel
from spangrad.errors import BackendError, SpangradError
from spangrad_vllm._architecture import require_architecture
from spangrad_vllm._command import served_context
from spangrad_vllm._drawing import draw
from spangrad_vllm._installation import Installation, require_installation
from spangrad_vllm._loop import Loop
from spangrad_vllm._memory import require_memory
from spangrad_vllm._options import VllmOptions
from spangrad_vllm._pool import Pool
from spangrad_vllm._server import Address, Server
from spangrad_vllm._source import Attached, Source, Starter
from spangrad_vllm._together import together
from spangrad_vllm._weights import AdapterWeights, FullWeights

if TYPE_CHECKING:
    from spangrad.backend import Served, ServedPolicy


class VllmServers:
    """Servers that draw the answers of some policies; implements `spangrad.backend.Served`.

    With adapters all policies are served by every server; without, each policy has servers of its own, and so has the model as it was
    loaded.

    Args:
        options: the sampler's table.
        model: what to serve.
        installation: the vLLM to start; None to attach to the servers of `options.urls`.

    Raises:
        BackendError: they do not start, cannot be used, or cannot serve this model.
    """

    def __init__(self, options: VllmOptions, model: ServedModel, installation: Installation | None) -> None:
        self._options = options
        self._model = model
        self._installation = installation
        self._context = served_context(options, model)
        names: list[str | None] = [*model.policies, *([None] if model.initial else [])]
        crews = [names] if model.adapter_rank is not None else [[name] for name in names]
        if options.urls and len(crews) > 1:
            raise BackendError(
                f"{len(crews)} models need servers of their own, and urls names those of one",
                cure='Train adapters (adapter = "lora"), which share their servers, or leave urls out',
            )
        if installation is not None:
            require_architecture(installation, model.folder)
            require_memory(installation, options, model.folder, servers=len(crews) * options.servers)
        self._logs, self._logs_are_temporary = _log_folder(options)
        self._pools = [self._pool(number, len(crews)) for number in range(len(crews))]
        self._loop = Loop()
        self._samplers = {
            name: VllmSampler(self._loop, pool, model, name, context=self._context)
            for crew, pool in zip(crews, self._pools, strict=True)
            for name in crew
        }
        self._policies = {name: self._samplers[name] for name in model.policies}
        try:
            self._loop.begin(together([pool.start() for pool in self._pools])).result()
        except BaseException as error:  # Ctrl-C too
            self._close(keep_logs=isinstance(error, SpangradError))
            raise

    @classmethod
    def start(cls, options: VllmOptions, model: ServedModel) -> VllmServers:
        """Starts them, or attaches to them, and returns when they answer.

        Raises:
            BackendError: as the class.
        """
        return cls(options, model, None if options.urls else require_installation(options))

    @property
    def policies(self) -> Mapping[str, VllmSampler]:
        """By name."""
        return self._policies

    @property
    def initial(self) -> VllmSampler | None:
        """Draws from the model as it was loaded, if that was asked for."""
        return self._samplers.get(None)

    def describe(self) -> Mapping[str, Any]:
        """Servers, their logs and vLLM's version."""
        described: dict[str, Any] = {"servers": [url for pool in self._pools for url in pool.urls]}
        if self._installation is not None:
            device = "cpu" if self._installation.on_cpu else "gpu"
            described |= {"vllm": self._installation.version, "device": device, "logs": str(self._logs)}
        return described | {"context": self._context}

    async def close(self) -> None:
        """Ends the servers that were started; answers under way fail. Closing twice is harmless."""
        await asyncio.to_thread(self._close, keep_logs=False)

    def _close(self, *, keep_logs: bool) -> None:
        if self._loop.closed:
            return
        self._loop.begin(together([pool.close() for pool in self._pools])).result()
        self._loop.close()
        if self._logs_are_temporary and not (keep_logs and any(self._logs.iterdir())):
            shutil.rmtree(self._logs, ignore_errors=True)

    def _pool(self, number: int, pools: int) -> Pool:
        options, model = self._options, self._model
        size = len(options.urls) or options.servers
        source: Source
        if self._installation is None:
            source = Attached(options.urls, model, context=self._context)
        else:
            label = "vllm" if pools == 1 else f"vllm-{number}"
            source = Starter(
                self._installation, options, model, logs=self._logs, first=number * options.servers, label=label
            )
        weights = AdapterWeights(model.folder) if model.adapter_rank is not None else self._full_weights(number)
        return Pool(source, weights, self._server, size=size, start_timeout=options.start_timeout)

    def _full_weights(self, number: int) -> FullWeights:
        on_cpu = self._installation is not None and self._installation.on_cpu
        untied = self._model.handover / f"untied-{number}"
        return FullWeights(self._model.folder, untied=untied if on_cpu else None)

    def _server(self, number: int, address: Address) -> Server:
        timeout = self._options.weights_timeout
        return Server(number, address, self._model, context=self._context, weights_timeout=timeout)


class VllmSampler:
    """Draws one policy's answers; implements `spangrad.backend.ServedPolicy`.

    Args:
        loop: the servers'.
        pool: serves the policy.
        model: of the policy.
        policy: its name; None for the model as it was loaded.
        context: most tokens of a prompt and its answer.
    """

    def __init__(self, loop: Loop, pool: Pool, model: ServedModel, policy: str | None, *, context: int) -> None:
        self._loop = loop
        self._pool = pool
        self._model = model
        self._policy = policy
        self._context = context

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return self._context

    @property
    def policy_version(self) -> int:
        """Of the weights it draws with."""
        return self._pool.present(self._policy)

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """Draws the request's choices, yielding as tokens come; closing the generator stops the servers' work.

        Raises:
            BackendError: the prompt leaves no room, a server refuses the request, or there is none any more.
        """
        here = asyncio.get_running_loop()
        queue: asyncio.Queue[SampleDelta | BaseException | None] = asyncio.Queue()

        def put(item: SampleDelta | BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                here.call_soon_threadsafe(queue.put_nowait, item)

        work = draw(self._pool, self._model, self._policy, request, context=self._context, emit=put)
        future = self._loop.begin(work)
        future.add_done_callback(lambda done: None if done.cancelled() else put(done.exception()))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            future.cancel()

    async def take(self, folder: Path, version: int) -> None:
        """See `spangrad.backend.ServedPolicy.take`. Goes on to its end where the caller is cancelled: half of an exchange is none."""
        if self._policy is None:
            raise AssertionError("the model as it was loaded is never trained")
        await asyncio.shield(asyncio.wrap_future(self._loop.begin(self._pool.take(self._policy, folder, version))))


def _log_folder(options: VllmOptions) -> tuple[Path, bool]:
    """Where logs go, and whether they go away again.

    Raises:
        BackendError: the folder cannot be made.
    """
    if options.log_folder is None:
        return Path(tempfile.mkdtemp(prefix="spangrad-vllm-")), True
    folder = Path(options.log_folder).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"The folder of logs {folder} cannot be made: {error}") from error
    return folder, False


if TYPE_CHECKING:

    def _keeps_the_contract(servers: VllmServers, sampler: VllmSampler) -> tuple[Served, ServedPolicy]:
        """Only for the type checker."""
        return servers, sampler
