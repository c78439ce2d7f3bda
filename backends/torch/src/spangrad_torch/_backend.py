"""The torch backend: policies in this process, each sampled from and trained by turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers import AutoTokenizer

from spangrad.backend import SOLE_POLICY
from spangrad.errors import BackendError
from spangrad_torch._chat_format import TemplateFormat
from spangrad_torch._model import LoadedModel, find_model, load_model
from spangrad_torch._model_copy import copied
from spangrad_torch._options import TorchOptions
from spangrad_torch._policy import ServingSampler, TorchPolicy, make_samplers
from spangrad_torch._precision import Compute, choose_compute
from spangrad_torch._pretrained import read_pretrained
from spangrad_torch._sampler_orders import SamplerSetup
from spangrad_torch._sampler_process import RemoteSampler, SamplerProcess
from spangrad_torch._serving import Serve, Serving
from spangrad_torch._weight_file import weight_folder

if TYPE_CHECKING:
    from spangrad.backend import Backend, ChatFormat, Learner, Policy, Sampler


class TorchBackend:
    """Policies on one model; implements `spangrad.backend.Backend`.

    With adapters every policy has its own, and they share the model's weights; without, every policy has all weights to itself.

    Args:
        loaded: the model; the first policy takes it as it is.
        compute: precision, kernels and threads.
        options: the backend's table of train.toml.
        seed: of the adapters' first weights and of answers sampled without a seed.
        policies: names of the policies.
        initial: also serve the model as it was loaded.
        serve: starts the servers that draw answers; only with `options.served`.

    Raises:
        BackendError: the adapter's target layers are not in the model, or the sampler's process or servers cannot start.
    """

    name = "torch"

    def __init__(
        self,
        loaded: LoadedModel,
        compute: Compute,
        options: TorchOptions,
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
        serve: Serve | None = None,
    ) -> None:
        self._loaded = loaded
        self._compute = compute
        self._options = options
        share = options.adapter_options is not None
        models = [loaded, *(copied(loaded, share_weights=share) for _ in policies[1:])]
        names: list[str | None] = [*policies, *([None] if initial else [])]
        self._process: SamplerProcess | None = None
        self._serving: Serving | None = None
        samplers: Mapping[str | None, ServingSampler]
        if serve is not None:
            served = dict(zip(policies, models, strict=True))
            serving = self._serving = Serving(serve, served, options, initial=initial, seed=seed)
            samplers = dict(serving.samplers.items())
        elif options.sampler == "process":
            device = str(loaded.model.device)
            setup = SamplerSetup(options, compute, device, seed, tuple(policies), initial, weight_folder())
            process = self._process = SamplerProcess(setup)
            samplers = {name: RemoteSampler(process, name, context_length=loaded.context_length) for name in names}
        else:
            frozen = [copied(loaded, share_weights=share)] if initial else []
            for model in frozen:
                compute.apply(model.model)
            samplers = make_samplers(dict(zip(names, [*models, *frozen], strict=True)), compute, options, seed=seed)
        try:
            self._policies = {
                name: TorchPolicy(model, samplers[name], compute, options, seed=seed + number)
                for number, (name, model) in enumerate(zip(policies, models, strict=True))
            }
        except BackendError:
            if self._serving is not None:
                self._serving.close_now()
            raise
        self._own_initial = samplers.get(None)

    @classmethod
    def load(
        cls,
        options: TorchOptions,
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
        serve: Serve | None = None,
    ) -> Self:
        """Loads the model and measures how to compute where an option says auto.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the device is missing, the model cannot be trained here, or the servers that `serve` starts do not start.
        """
        device = required_device(options)
        loaded = load_model(options.model, dtype=torch.float32, device=device)
        compute = choose_compute(
            loaded,
            precision=options.precision,
            decode_threads=1 if options.served else options.decode_threads,
            train_threads=options.train_threads,
        )
        return cls(loaded, compute, options, seed=seed, policies=policies, initial=initial, serve=serve)

    @property
    def policies(self) -> Mapping[str, TorchPolicy]:
        """The policies by name."""
        return self._policies

    @property
    def initial(self) -> Sampler | None:
        """Draws from the model as it was loaded, if that was asked for."""
        return self._own_initial if self._serving is None else self._serving.initial

    @property
    def chat_format(self) -> ChatFormat:
        """Of the model's tokenizer."""
        return self._loaded.chat_format

    @property
    def mismatch(self) -> bool:
        """In bf16 sampler and learner round apart, and servers compute in ways of their own."""
        return self._serving is not None or self._compute.autocast is not None

    def describe(self) -> Mapping[str, Any]:
        """Model, parameters, precision, threads and library versions, for the run's summary."""
        device = self._loaded.model.device
        weights = {id(weight): weight for policy in self._policies.values() for weight in policy.tensors()}
        first = next(iter(self._policies.values()))
        return {
            "model": self._loaded.origin,
            "policies": list(self._policies),
            "parameters": sum(weight.numel() for weight in weights.values()),
            "trained_parameters": sum(policy.learner.trained_parameters for policy in self._policies.values()),
            "training": first.learner.training,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "precision": "fp32" if self._compute.autocast is None else "bf16",
            "sampler": self._options.sampler,
            **({"decode_threads": self._compute.decode_threads} if self._serving is None else self._serving.describe()),
            "train_threads": self._compute.train_threads,
            "prefix_tree": first.learner.shares_prefixes,
            "context_length": first.sampler.context_length,
            "max_sequence": first.learner.max_sequence,
            "measured_ms": dict(self._compute.measured),
            "versions": {name: metadata.version(name) for name in ("torch", "transformers", "peft", "spangrad-torch")},
        }

    async def close(self) -> None:
        """Stops samplers and learners; answers under way fail."""
        for policy in self._policies.values():
            await policy.close()
        if self._own_initial is not None:
            await self._own_initial.close()
        if self._process is not None:
            await self._process.close()
        if self._serving is not None:
            await self._serving.close()


if TYPE_CHECKING:

    def _keeps_the_contract(backend: TorchBackend, policy: TorchPolicy) -> tuple[Backend, Policy, Sampler, Learner]:
        """Only for the type checker."""
        return backend, policy, policy.sampler, policy.learner


def load_chat_format(options: TorchOptions) -> TemplateFormat:
    """The model's tokenizer and chat template, without its weights.

    Raises:
        ModelNotFoundError: no such model, with the way to get it.
        BackendError: the tokenizer has no chat template that can be used.
    """
    return TemplateFormat(read_pretrained(find_model(options.model).folder, AutoTokenizer))


def required_device(options: TorchOptions) -> torch.device:
    """The device that the options name; auto takes the GPU if there is one.

    Raises:
        BackendError: it is not here, or not one that the other options need.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BackendError('device = "cuda", but torch sees no GPU', cure='Use device = "auto" or "cpu"')
    device = torch.device("cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu")
    if options.tree_attention == "flex" and device.type == "cpu":
        raise BackendError(
            'tree_attention = "flex" needs a GPU, and torch sees none: it has no backward of FlexAttention on a CPU',
            cure='Use tree_attention = "auto" in [torch]',
        )
    return device
