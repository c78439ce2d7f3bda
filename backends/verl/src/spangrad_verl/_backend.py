"""The verl backend: one policy, trained by verl's workers on Ray and drawn from by servers that another plug-in brings."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from spangrad.backend import Sampler, Served, ServedModel, ServedPolicy
from spangrad_torch import weight_folder
from spangrad_verl._checked import CheckedOptions
from spangrad_verl._hardware import require_hardware
from spangrad_verl._learner import Setup, VerlLearner
from spangrad_verl._model_folder import ModelFolder
from spangrad_verl._ray_workers import RayWorkers
from spangrad_verl._worker_config import compute_dtype, loss_function, worker_config

if TYPE_CHECKING:
    from spangrad.backend import Backend, ChatFormat, Learner, Policy


class VerlPolicy:
    """What draws from the policy and what trains it; implements `spangrad.backend.Policy`.

    Args:
        served: draws.
        learner: trains.
    """

    def __init__(self, served: ServedPolicy, learner: VerlLearner) -> None:
        self._served = served
        self._learner = learner

    @property
    def sampler(self) -> ServedPolicy:
        """Draws from the policy."""
        return self._served

    @property
    def learner(self) -> VerlLearner:
        """Updates the policy."""
        return self._learner

    @property
    def version(self) -> int:
        """Of the weights the sampler draws with."""
        return self._served.policy_version


class VerlBackend:
    """One policy; implements `spangrad.backend.Backend`.

    Args:
        checked: the backend's table of train.toml.
        model: as it was loaded.
        workers: the learner's.
        served: the servers.
        handover: folder in which weights go over to them.
        policy: its name.
    """

    name = "verl"

    def __init__(
        self,
        checked: CheckedOptions,
        model: ModelFolder,
        *,
        workers: RayWorkers,
        served: Served,
        handover: Path,
        policy: str,
    ) -> None:
        self._checked = checked
        self._model = model
        self._workers = workers
        self._served = served
        self._handover = handover
        self._setup = learner_setup(checked, model)
        self._parameters = _first(workers.group.trained_parameters())
        learner = VerlLearner(workers.group, self._setup, model, served.policies[policy], handover)
        self._policies = {policy: VerlPolicy(served.policies[policy], learner)}

    @classmethod
    def start(cls, checked: CheckedOptions, *, seed: int, policy: str, initial: bool = False) -> Self:
        """Starts the learner's workers and the servers.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: a part is missing, said before anything is started; or something does not start.
        """
        model = ModelFolder.find(checked.own.model)
        require_hardware(checked.verl, model)
        checked.servers.require(checked.table)
        setup = learner_setup(checked, model)
        config = worker_config(checked.verl, str(model.folder), max_sequence=setup.max_sequence)
        handover = weight_folder()
        rank = int(checked.verl.actor_rollout_ref.model.lora_rank)
        wanted = ServedModel(
            folder=model.folder,
            handover=handover,
            policies=(policy,),
            context_length=model.context_length,
            end_ids=model.end_ids,
            decode=partial(model.chat_format.decode, skip_special=True),
            adapter_rank=rank or None,
            initial=initial,
            seed=seed,
        )
        served: Served | None = None
        try:
            # Servers first: what they have to say against the model or the machine, they say before anything is started.
            served = checked.servers.start(checked.table, wanted)
            workers = RayWorkers.start(checked.verl, config, timeout=checked.own.start_timeout)
        except BaseException:  # Ctrl-C too
            if served is not None:
                with ThreadPoolExecutor(1) as pool:  # a loop may be running here
                    pool.submit(asyncio.run, served.close()).result()
            shutil.rmtree(handover, ignore_errors=True)
            raise
        return cls(checked, model, workers=workers, served=served, handover=handover, policy=policy)

    @property
    def policies(self) -> Mapping[str, VerlPolicy]:
        """The one policy by its name."""
        return self._policies

    @property
    def initial(self) -> Sampler | None:
        """Draws from the model as it was loaded, if that was asked for."""
        return self._served.initial

    @property
    def chat_format(self) -> ChatFormat:
        """Of the model's tokenizer."""
        return self._model.chat_format

    @property
    def mismatch(self) -> bool:
        """verl and vLLM compute with kernels of their own."""
        return True

    def describe(self) -> Mapping[str, Any]:
        """Model, parameters, precision, workers, servers and versions, for the run's summary."""
        names = ("verl", "ray", "torch", "transformers", "tensordict", "spangrad-verl")
        return {
            "model": self._model.origin,
            "policies": list(self._policies),
            "trained_parameters": self._parameters,
            "training": self._setup.training,
            "device": self._checked.verl.trainer.device,
            "workers": self._setup.ranks,
            "precision": self._setup.dtype,
            "max_sequence": self._setup.max_sequence,
            "context_length": self._model.context_length,
            self._checked.own.sampler: dict(self._served.describe()),
            "versions": {name: metadata.version(name) for name in names},
        }

    async def close(self) -> None:
        """Ends servers and workers; answers under way fail. Closing twice is harmless."""
        try:
            await self._served.close()
        finally:
            await asyncio.to_thread(self._workers.close)  # first: a call of theirs that hangs ends with them
            for policy in self._policies.values():
                await policy.learner.close()
            await asyncio.to_thread(shutil.rmtree, self._handover, ignore_errors=True)


def learner_setup(checked: CheckedOptions, model: ModelFolder) -> Setup:
    """How the learner's workers are set up.

    Args:
        checked: the backend's table of train.toml.
        model: to be trained.
    """
    verl = checked.verl
    actor, ranks = verl.actor_rollout_ref.actor, int(verl.trainer.n_gpus_per_node) * int(verl.trainer.nnodes)
    rank = int(verl.actor_rollout_ref.model.lora_rank)
    what = f"adapters of rank {rank} on" if rank else "all weights of"
    return Setup(
        workers=ranks // int(actor.fsdp_config.ulysses_sequence_parallel_size),
        ranks=ranks,
        multiple=1 if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu),
        max_sequence=min(checked.own.max_sequence, model.context_length),
        dtype=compute_dtype(verl),
        training=f"{what} a model of type {model.config.model_type} by verl",
        loss_function=partial(loss_function, verl),
    )


def _first(told: Any) -> Any:
    """What the first worker says, where a group of them was asked."""
    return told[0] if isinstance(told, list) else told


if TYPE_CHECKING:

    def _keeps_the_contract(backend: VerlBackend, policy: VerlPolicy) -> tuple[Backend, Policy, Sampler, Learner]:
        """Only for the type checker."""
        return backend, policy, policy.sampler, policy.learner
