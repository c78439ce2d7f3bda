"""Samplers in a process of their own: decoding and learning then share neither weights nor Python's lock.

Weights go over when they are published, through a file in shared memory (`_weight_file`). Answers under way go on with them, each
token tagged with the version that drew it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from torch import Tensor

from spangrad.backend import SampleDelta, SampleRequest
from spangrad.errors import BackendError
from spangrad_torch._sampler_orders import Cancel, Draw, Order, Ready, Reply, SamplerSetup, Take
from spangrad_torch._weight_file import write_weights

_PATIENCE: Final = 10.0
"""Seconds the process gets to end by itself."""

_Item = SampleDelta | BackendError | None


@dataclass(eq=False)
class _Waiting:
    """Who waits for replies, and where."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[_Item]


class SamplerProcess:
    """Starts the process, and passes on what it is asked and what it replies.

    Args:
        setup: what it loads.

    Raises:
        BackendError: it cannot load the model, or ended before it had.
    """

    def __init__(self, setup: SamplerSetup) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        """Guards the connection's sending side and the two below."""
        self._waiting: dict[int, _Waiting] = {}
        self._ended: BackendError | None = None
        self._folder = setup.folder
        self._reader: threading.Thread | None = None
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "spangrad_torch._sampler_child", str(theirs.fileno())]
            # A session of its own, so that Ctrl-C in a terminal reaches us alone, and we end it in good order.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)  # noqa: S603 - ours
        self._connection = Connection(self._socket.dup().detach())
        try:
            self._connection.send(setup)
            first = self._connection.recv()
        except (EOFError, OSError):
            first = Reply(0, self._died())
        if not isinstance(first, Ready):
            self._stop()
            raise first.item
        self._reader = threading.Thread(target=self._read, name="spangrad-sampler-replies", daemon=True)
        self._reader.start()

    async def draw(self, policy: str | None, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """As `Sampler.sample`, of that policy; None for the model as it was loaded."""
        number, waiting = self._ask(lambda number: Draw(number, policy, request))
        whole = False
        try:
            while (item := await waiting.queue.get()) is not None:
                if isinstance(item, BackendError):
                    whole = True
                    raise item
                yield item
            whole = True
        finally:
            self._forget(number, cancel=not whole)

    async def take(self, policy: str, weights: Mapping[str, Tensor], version: int) -> None:
        """Hands weights over, and returns when answers are drawn with them.

        Raises:
            BackendError: there is no room for the file, or the process ended.
        """
        path = self._folder / f"{policy}-{version}.safetensors"
        await asyncio.to_thread(write_weights, weights, path)
        number, waiting = self._ask(lambda number: Take(number, policy, path, version))
        try:
            if (failure := await waiting.queue.get()) is not None:
                raise (
                    failure if isinstance(failure, BackendError) else AssertionError("weights are answered by no delta")
                )
        finally:
            self._forget(number, cancel=False)
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Ends the process; answers under way fail. Closing twice is harmless."""
        await asyncio.to_thread(self._stop)

    def _ask(self, order: Callable[[int], Order]) -> tuple[int, _Waiting]:
        """Sends an order under a number of its own, and says where the replies will be.

        Raises:
            BackendError: the process has ended.
        """
        waiting = _Waiting(asyncio.get_running_loop(), asyncio.Queue())
        number = next(self._numbers)
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._waiting[number] = waiting
        self._send(order(number))
        return number, waiting

    def _forget(self, number: int, *, cancel: bool) -> None:
        """Nobody waits for that number any more."""
        with self._lock:
            self._waiting.pop(number, None)
        if cancel:
            self._send(Cancel(number))

    def _send(self, order: Order) -> None:
        with self._lock, suppress(OSError):  # where the process has ended, the reading thread says so to all who wait
            self._connection.send(order)

    def _read(self) -> None:
        """Passes replies on until there are none."""
        with suppress(EOFError, OSError):
            while True:
                reply = self._connection.recv()
                with self._lock:
                    waiting = self._waiting.get(reply.number)
                if waiting is not None:
                    _put(waiting, reply.item)
        with self._lock:
            self._ended = self._ended or self._died()
            left = list(self._waiting.values())
        for waiting in left:
            _put(waiting, self._ended)

    def _died(self) -> BackendError:
        """What there is to say about a process that ended and was not told to."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        code = self._process.returncode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        return BackendError(
            f"The sampler's process ended ({how})",
            cure="See what it wrote to standard error; if the system killed it, it was most likely short of memory",
        )

    def _stop(self) -> None:
        with self._lock:
            self._ended = self._ended or BackendError("The sampler is closed")
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # which ends the reading thread, and the process
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        with self._lock:
            self._connection.close()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class RemoteSampler:
    """One policy of a sampler's process; implements `spangrad.backend.Sampler`.

    Args:
        process: draws.
        policy: its name; None for the model as it was loaded.
        context_length: the model's.
    """

    def __init__(self, process: SamplerProcess, policy: str | None, *, context_length: int) -> None:
        self._process = process
        self._policy = policy
        self._context_length = context_length
        self.policy_version = 0
        """Of the weights it draws with: those of the last `take`."""

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return self._context_length

    def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """See `TorchSampler.sample`."""
        return self._process.draw(self._policy, request)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nothing to wait for: the learner's weights are its own."""
        yield

    def changed(self, version: int) -> None:
        """Nothing: it draws with its own weights until it takes others."""

    async def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Draws with these weights from now on; answers under way go on with them.

        Raises:
            BackendError: they cannot be handed over.
        """
        if self._policy is None:
            raise AssertionError("the model as it was loaded is never trained")
        await self._process.take(self._policy, weights, version)
        self.policy_version = version

    async def close(self) -> None:
        """Nothing: the process is closed with the backend."""


def _put(waiting: _Waiting, item: _Item) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        waiting.loop.call_soon_threadsafe(waiting.queue.put_nowait, item)
