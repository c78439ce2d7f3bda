"""The torch backend: one model in this process, sampled from and trained by turns."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers import AutoTokenizer

from spangrad.errors import BackendError
from spangrad_torch._chat_format import TemplateFormat
from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel, find_model, load_model
from spangrad_torch._options import TorchOptions
from spangrad_torch._precision import Compute, choose_compute
from spangrad_torch._pretrained import read_pretrained
from spangrad_torch._sampler import TorchSampler

if TYPE_CHECKING:
    from spangrad.backend import Backend, ChatFormat, Learner, Sampler


class TorchBackend:
    """A model, its sampler and its learner; implements `spangrad.backend.Backend`.

    Args:
        loaded: the model, which sampler and learner share.
        compute: precision, kernels and threads.
        options: the backend's table of train.toml.
        seed: of the adapters' first weights and of answers sampled without a seed.

    Raises:
        BackendError: the adapter's target layers are not in the model.
    """

    name = "torch"

    def __init__(self, loaded: LoadedModel, compute: Compute, options: TorchOptions, *, seed: int) -> None:
        self._loaded = loaded
        self._compute = compute
        self._options = options
        self._sampler = TorchSampler(
            loaded,
            max_rows=options.max_rows,
            prefix_cache_mb=options.prefix_cache_mb,
            threads=compute.decode_threads,
            autocast=compute.autocast,
            seed=seed,
        )
        self._learner = TorchLearner(
            loaded, self._sampler, options, threads=compute.train_threads, autocast=compute.autocast, seed=seed
        )
        compute.apply(loaded.model)

    @classmethod
    def load(cls, options: TorchOptions, *, seed: int) -> Self:
        """Loads the model and measures how to compute where an option says auto.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the device is missing, or the model cannot be trained here.
        """
        loaded = load_model(options.model, dtype=torch.float32, device=_device(options.device))
        compute = choose_compute(
            loaded,
            precision=options.precision,
            decode_threads=options.decode_threads,
            train_threads=options.train_threads,
        )
        return cls(loaded, compute, options, seed=seed)

    @property
    def sampler(self) -> TorchSampler:
        """Serves the policy."""
        return self._sampler

    @property
    def learner(self) -> TorchLearner:
        """Updates the policy."""
        return self._learner

    @property
    def chat_format(self) -> ChatFormat:
        """Of the model's tokenizer."""
        return self._loaded.chat_format

    @property
    def policy_version(self) -> int:
        """Of the weights the sampler draws with."""
        return self._sampler.policy_version

    def describe(self) -> Mapping[str, Any]:
        """Model, parameters, precision, threads and library versions, for the run's summary."""
        model = self._loaded.model
        return {
            "model": self._loaded.origin,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "trained_parameters": self._learner.trained_parameters,
            "training": self._learner.training,
            "device": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu",
            "precision": "fp32" if self._compute.autocast is None else "bf16",
            "decode_threads": self._compute.decode_threads,
            "train_threads": self._compute.train_threads,
            "prefix_tree": self._learner.shares_prefixes,
            "context_length": self._sampler.context_length,
            "max_sequence": self._learner.max_sequence,
            "measured_ms": dict(self._compute.measured),
            "versions": {name: metadata.version(name) for name in ("torch", "transformers", "peft", "spangrad-torch")},
        }

    async def close(self) -> None:
        """Stops sampler and learner; answers under way fail."""
        await self._learner.close()
        await self._sampler.close()


if TYPE_CHECKING:

    def _keeps_the_contract(backend: TorchBackend) -> tuple[Backend, Sampler, Learner]:
        """Only for the type checker."""
        return backend, backend.sampler, backend.learner


def load_chat_format(options: TorchOptions) -> TemplateFormat:
    """The model's tokenizer and chat template, without its weights.

    Raises:
        ModelNotFoundError: no such model, with the way to get it.
        BackendError: the tokenizer has no chat template that can be used.
    """
    return TemplateFormat(read_pretrained(find_model(options.model).folder, AutoTokenizer))


def _device(name: str) -> torch.device:
    """The device of that name; auto takes the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendError('device = "cuda", but torch sees no GPU', cure='Use device = "auto" or "cpu"')
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
