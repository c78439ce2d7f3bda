"""Servers that draw the policies' answers, which another plug-in brings, and the folder in which weights go over to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from spangrad.backend import Sampler, Served, ServedModel
from spangrad_torch._adapters import save_adapter
from spangrad_torch._export import export_model
from spangrad_torch._model import LoadedModel
from spangrad_torch._options import TorchOptions
from spangrad_torch._served_sampler import ServedSampler
from spangrad_torch._weight_file import weight_folder

Serve = Callable[[ServedModel], Served]
"""Starts the servers."""


class Serving:
    """The servers, and a sampler of each policy.

    Args:
        serve: starts them.
        models: by policy; adapters may be put into them later.
        options: the backend's table.
        initial: also serve the model as it was loaded.
        seed: of answers sampled without a seed.

    Raises:
        BackendError: they do not start, or cannot serve this model.
    """

    def __init__(
        self, serve: Serve, models: Mapping[str, LoadedModel], options: TorchOptions, *, initial: bool, seed: int
    ) -> None:
        loaded = next(iter(models.values()))
        self._name = options.sampler
        self._folder = weight_folder()
        lora = options.adapter_options
        model = ServedModel(
            folder=loaded.folder,
            handover=self._folder,
            policies=tuple(models),
            context_length=loaded.context_length,
            end_ids=loaded.end_ids,
            decode=partial(loaded.chat_format.decode, skip_special=True),
            adapter_rank=None if lora is None else lora.rank,
            initial=initial,
            seed=seed,
        )
        try:
            self._served = serve(model)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

        def write(of: LoadedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
            if lora is None:
                export_model(of, folder)
            else:
                save_adapter(of.model, lora, weights, folder)

        self.samplers = {
            name: ServedSampler(self._served.policies[name], name, self._folder, partial(write, of))
            for name, of in models.items()
        }
        """By policy."""

    @property
    def initial(self) -> Sampler | None:
        """Draws from the model as it was loaded, if that was asked for."""
        return self._served.initial

    def describe(self) -> Mapping[str, Any]:
        """What the servers say of themselves, under the sampler's name."""
        return {self._name: dict(self._served.describe())}

    async def close(self) -> None:
        """Ends the servers; answers under way fail."""
        try:
            await self._served.close()
        finally:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def close_now(self) -> None:
        """The same where no coroutine can be awaited; returns when it is done."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, self.close()).result()
