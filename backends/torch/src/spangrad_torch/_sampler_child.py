"""The sampler's own process: `python -m spangrad_torch._sampler_child DESCRIPTOR`; started by `SamplerProcess`.

It ends when the socket does, so it outlives its parent by no more than the step it is in.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Mapping
from contextlib import aclosing
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from spangrad.backend import SampleDelta
from spangrad.errors import BackendError
from spangrad_torch._adapters import choose_trained
from spangrad_torch._model import load_model
from spangrad_torch._model_copy import copied
from spangrad_torch._policy import make_samplers
from spangrad_torch._sampler_orders import Cancel, Draw, Order, Ready, Reply, SamplerSetup, Take
from spangrad_torch._weight_file import take_weights


class _Child:
    """Serves what comes through the socket.

    Args:
        connection: the socket.
        setup: what to load.
    """

    def __init__(self, connection: Connection, setup: SamplerSetup) -> None:
        self._connection = connection
        self._weights: dict[str, Mapping[str, Tensor]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._load(setup)

    async def serve(self) -> None:
        """Until the socket ends."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(self._obey, self._connection.recv())
            except (EOFError, OSError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="spangrad-orders", daemon=True).start()
        self._connection.send(Ready())
        await ended.wait()
        for task in self._tasks.values():
            task.cancel()
        for sampler in self._samplers.values():
            await sampler.close()

    def _load(self, setup: SamplerSetup) -> None:
        """The same models as the learners', in the same order, each with its adapters."""
        lora = setup.options.adapter_options
        loaded = load_model(setup.options.model, dtype=torch.float32, device=setup.device)
        names = [*setup.policies, *([None] if setup.initial else [])]
        copies = (copied(loaded, share_weights=lora is not None) for _ in names[1:])
        models = dict(zip(names, [loaded, *copies], strict=True))
        for number, name in enumerate(setup.policies):
            self._weights[name] = choose_trained(models[name].model, lora, seed=setup.seed + number)
        for model in models.values():
            setup.compute.apply(model.model)
        self._samplers = make_samplers(models, setup.compute, setup.options, seed=setup.seed)

    def _obey(self, order: Order) -> None:
        if isinstance(order, Cancel):
            if (task := self._tasks.get(order.number)) is not None:
                task.cancel()
            return
        work = self._draw(order) if isinstance(order, Draw) else self._take(order)
        task = self._tasks[order.number] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(order.number))

    async def _draw(self, order: Draw) -> None:
        error = None
        try:
            async with aclosing(self._samplers[order.policy].sample(order.request)) as deltas:
                async for delta in deltas:
                    self._reply(order.number, delta)
        except BackendError as failure:
            error = failure
        self._reply(order.number, error)

    async def _take(self, order: Take) -> None:
        sampler = self._samplers[order.policy]
        async with sampler.paused():
            await asyncio.to_thread(take_weights, order.path, self._weights[order.policy])
            sampler.policy_version = order.version
        self._reply(order.number, None)

    def _reply(self, number: int, item: SampleDelta | BackendError | None) -> None:
        try:
            self._connection.send(Reply(number, item))
        except OSError:  # the parent is gone, and the reading thread ends this process
            return


def main() -> None:
    """Loads the models, then serves; the folder of the weights does not outlive it where the parent was killed."""
    connection = Connection(int(sys.argv[1]))
    setup = connection.recv()
    try:
        child = _Child(connection, setup)
    except BackendError as error:
        connection.send(Reply(0, error))
        return
    try:
        asyncio.run(child.serve())
    finally:
        shutil.rmtree(setup.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
