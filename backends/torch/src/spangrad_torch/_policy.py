"""One policy: a model, what draws from it and what trains it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel
from spangrad_torch._options import TorchOptions
from spangrad_torch._precision import Compute
from spangrad_torch._sampler import TorchSampler
from spangrad_torch._sampler_process import RemoteSampler
from spangrad_torch._served_sampler import ServedSampler

ServingSampler = TorchSampler | RemoteSampler | ServedSampler


class TorchPolicy:
    """A model's sampler and its learner; implements `spangrad.backend.Policy`.

    Args:
        loaded: the model; adapters are put into it in place.
        sampler: serves it.
        compute: precision, kernels and threads.
        options: the backend's table of train.toml.
        seed: of the adapters' first weights.

    Raises:
        BackendError: the adapter's target layers are not in the model.
    """

    def __init__(
        self, loaded: LoadedModel, sampler: ServingSampler, compute: Compute, options: TorchOptions, *, seed: int
    ) -> None:
        self._sampler = sampler
        self._learner = TorchLearner(
            loaded, sampler, options, threads=compute.train_threads, autocast=compute.autocast, seed=seed
        )
        compute.apply(loaded.model)
        self._model = loaded.model

    @property
    def sampler(self) -> ServingSampler:
        """Serves the policy."""
        return self._sampler

    @property
    def learner(self) -> TorchLearner:
        """Updates the policy."""
        return self._learner

    @property
    def version(self) -> int:
        """Of the weights the sampler draws with."""
        return self._sampler.policy_version

    def tensors(self) -> list[torch.Tensor]:
        """All weights, those that other policies share included."""
        return list(self._model.parameters())

    async def close(self) -> None:
        """Stops sampler and learner; answers under way fail."""
        await self._learner.close()
        await self._sampler.close()


def make_samplers(
    models: Mapping[str | None, LoadedModel], compute: Compute, options: TorchOptions, *, seed: int
) -> dict[str | None, TorchSampler]:
    """A sampler of each model in this process.

    Args:
        models: by policy; None for the model as it was loaded.
        compute: precision and threads.
        options: the backend's table of train.toml; the samplers share the memory for prefixes among them.
        seed: of answers sampled without a seed.
    """
    return {
        name: TorchSampler(
            model,
            max_rows=options.max_rows,
            prefix_cache_mb=options.prefix_cache_mb // len(models),
            threads=compute.decode_threads,
            autocast=compute.autocast,
            seed=seed + number,
        )
        for number, (name, model) in enumerate(models.items())
    }
