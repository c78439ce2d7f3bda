"""The learner's worker: verl's own TrainingWorker, with the few things beside training that a policy's life needs.

All runs in the worker's process, on every rank alike; verl's worker group calls it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.workers.engine_workers import TrainingWorker

_TRAIN: Final = make_nd_compute_dataproto_dispatch_fn(mesh_name="train")
_ADAPTER: Final = "adapter_model.safetensors"


class ActorWorker(TrainingWorker):  # type: ignore[misc]  # verl publishes no types
    """One rank of the learner."""

    _reference: dict[str, Tensor] | None = None
    """This rank's part of the trained weights of the KL term's reference."""

    @register(dispatch_mode=_TRAIN)
    def step(self, data: TensorDict) -> TensorDict:
        """One optimiser step on all rows."""
        return self.train_batch(data)

    @register(dispatch_mode=_TRAIN)
    def compute(self, data: TensorDict) -> TensorDict:
        """Log-probabilities under the present weights."""
        return self.infer_batch(data)

    @register(dispatch_mode=_TRAIN)
    def compute_reference(self, data: TensorDict) -> TensorDict:
        """Log-probabilities under the reference, whose weights take the place of the present ones meanwhile."""
        with self._exchanged():
            return self.infer_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_learning_rate(self, learning_rate: float) -> None:
        """Of the steps from now on; verl's own schedule is never advanced."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def restart_optimizer(self) -> None:
        """Forgets moments."""
        self.engine.optimizer.state = defaultdict(dict)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def freeze_reference(self) -> None:
        """Takes the present weights as the reference; they are kept in main memory."""
        self._reference = {name: _local(weight).detach().to("cpu", copy=True) for name, weight in self._trained()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, folder: str) -> None:
        """Writes weights, optimiser and random state, as verl does, and the reference beside them."""
        self.save_checkpoint(folder)
        if self._reference is not None:
            save_file(self._reference, self._reference_file(folder))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def restore(self, folder: str) -> None:
        """Reads what `save` wrote."""
        self.load_checkpoint(folder)
        file = self._reference_file(folder)
        self._reference = load_file(file) if file.is_file() else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write_weights(self, folder: str, dtype: str) -> None:
        """Writes whole weights as transformers saves them, or the adapter as peft does. The first rank writes, all gather.

        Args:
            folder: is there.
            dtype: of whole weights, such as "bfloat16".
        """
        tensors, adapter = self.engine.get_per_tensor_param(base_sync_done=True)
        first = distributed.get_rank() == 0
        kept = {}
        for name, tensor in tensors:
            if first:
                kept[name] = tensor.detach().to("cpu", copy=True)
        if not first:
            return
        if adapter is not None:
            save_file(kept, Path(folder) / _ADAPTER)
            self.engine.module.peft_config["default"].save_pretrained(folder)
            return
        tied = getattr(self.engine.module, "_tied_weights_keys", None) or ()
        if self.model_config.hf_config.tie_word_embeddings:
            kept = {name: tensor for name, tensor in kept.items() if name not in tied}
        kind = getattr(torch, dtype)
        save_torch_state_dict(
            {name: tensor.to(kind) for name, tensor in kept.items()}, folder, metadata={"format": "pt"}
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def trained_parameters(self) -> int:
        """How many numbers are trained, over all ranks."""
        return sum(weight.numel() for _, weight in self._trained())

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        """The trained weights by name."""
        return ((name, weight) for name, weight in self.engine.module.named_parameters() if weight.requires_grad)

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        """The reference's weights in the place of the present ones."""
        if self._reference is None:
            raise RuntimeError("there is no reference: freeze_reference() makes one")
        present = {name: _local(weight).detach().clone() for name, weight in self._trained()}
        self._put(self._reference)
        try:
            yield
        finally:
            self._put(present)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        """Writes this rank's part of the trained weights, and drops what FSDP has gathered of the old ones."""
        for module in self.engine.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for name, weight in self._trained():
            _local(weight).copy_(weights[name])

    def _reference_file(self, folder: str) -> Path:
        return Path(folder) / f"reference_rank_{distributed.get_rank()}.safetensors"


def _local(weight: Tensor) -> Tensor:
    """This rank's part of a weight; shares its memory."""
    return weight.to_local() if isinstance(weight, distributed.tensor.DTensor) else weight
