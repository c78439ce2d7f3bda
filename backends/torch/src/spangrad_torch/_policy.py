"""One policy: a model, what draws from it and what trains it."""

from __future__ import annotations

import torch

from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel
from spangrad_torch._options import TorchOptions
from spangrad_torch._precision import Compute
from spangrad_torch._sampler import TorchSampler


class TorchPolicy:
    """A model's sampler and its learner; implements `spangrad.backend.Policy`.

    Args:
        loaded: the model, which sampler and learner share; adapters are put into it in place.
        compute: precision, kernels and threads.
        options: the backend's table of train.toml.
        prefix_cache_mb: memory for keys and values of prompts seen before.
        seed: of the adapters' first weights and of answers sampled without a seed.

    Raises:
        BackendError: the adapter's target layers are not in the model.
    """

    def __init__(
        self, loaded: LoadedModel, compute: Compute, options: TorchOptions, *, prefix_cache_mb: int, seed: int
    ) -> None:
        self._sampler = make_sampler(loaded, compute, options, prefix_cache_mb=prefix_cache_mb, seed=seed)
        self._learner = TorchLearner(
            loaded, self._sampler, options, threads=compute.train_threads, autocast=compute.autocast, seed=seed
        )
        compute.apply(loaded.model)
        self._model = loaded.model

    @property
    def sampler(self) -> TorchSampler:
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


def make_sampler(
    loaded: LoadedModel, compute: Compute, options: TorchOptions, *, prefix_cache_mb: int, seed: int
) -> TorchSampler:
    """A sampler of the model; arguments as for `TorchPolicy`."""
    return TorchSampler(
        loaded,
        max_rows=options.max_rows,
        prefix_cache_mb=prefix_cache_mb,
        threads=compute.decode_threads,
        autocast=compute.autocast,
        seed=seed,
    )
