"""Which weights are trained: all of them, or low-rank adapters put into the model in place (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import peft
import torch
from peft.tuners import lora as adapters
from torch import Tensor, nn
from transformers import PreTrainedModel

from spangrad.errors import BackendError
from spangrad_torch._options import LoraOptions

_ADAPTER = "default"


def choose_trained(model: PreTrainedModel, lora: LoraOptions | None, *, seed: int) -> dict[str, nn.Parameter]:
    """Marks the weights to train, adding adapters if asked for; the model object stays the one the sampler holds.

    Args:
        model: changed in place.
        lora: None trains every weight.
        seed: of the adapters' first weights; the global random state is left as it was.

    Returns:
        The trained weights by name; tied weights once.

    Raises:
        BackendError: no layer of the model is called as `lora.targets` says.
    """
    if lora is None:
        model.requires_grad_(requires_grad=True)
    else:
        _inject(model, lora, seed)
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _inject(model: PreTrainedModel, lora: LoraOptions, seed: int) -> None:
    """Puts adapters that change nothing yet (B is zero) into the target layers and freezes the rest."""
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    names = {name.rpartition(".")[2] for name, layer in linear.items() if layer is not head}
    wanted = names if lora.targets == "all-linear" else set(lora.targets)
    if missing := sorted(wanted - names):
        raise BackendError(
            f"The model has no linear layer called {', '.join(missing)}",
            cure=f"Choose lora.targets among {', '.join(sorted(names))}",
        )
    settings = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=sorted(wanted))
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)


def merged_weights(model: PreTrainedModel) -> Mapping[str, Tensor]:
    """The model's state under the names it had before adapters, each adapter's product added to the layer it adapts."""
    state = {name: value.detach() for name, value in model.state_dict().items()}
    for path, layer in model.named_modules():
        if not isinstance(layer, adapters.Linear):
            continue
        weight = state[f"{path}.base_layer.weight"]
        state[f"{path}.base_layer.weight"] = weight + layer.get_delta_weight(_ADAPTER).detach().to(weight.dtype)
    return {name.replace(".base_layer.", "."): value for name, value in state.items() if ".lora_" not in name}


def describe_training(model: PreTrainedModel, trained: Mapping[str, nn.Parameter], lora: LoraOptions | None) -> str:
    """What is trained, in words that end in a fingerprint: of the weights' names and shapes, and of the frozen weights.

    Two learners of equal words can read each other's checkpoints. A fingerprint of frozen weights looks at the beginning of
    each, which tells models apart without reading them whole.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {name in trained}\n".encode())
        if name not in trained:
            digest.update(weight.detach().flatten()[:16].float().cpu().numpy().tobytes())
    count = sum(weight.numel() for weight in trained.values())
    kind = "all weights" if lora is None else f"LoRA adapters of rank {lora.rank} and alpha {lora.alpha}"
    return f"{kind} of a {type(model).__name__} ({count:,} parameters, {digest.hexdigest()[:12]})"
