"""Which weights are trained: all of them, or low-rank adapters put into the model in place (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import peft
import torch
from peft.tuners import lora as adapters
from torch import Tensor, nn
from transformers import PreTrainedModel

from spangrad.errors import BackendError
from spangrad_torch._options import LoraOptions
from spangrad_torch._weight_file import write_weights

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
    settings = _settings(lora, sorted(wanted))
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)


def save_adapter(model: PreTrainedModel, lora: LoraOptions, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the adapters as peft does: for peft, and for servers that take adapters.

    Args:
        model: with the adapters in it.
        lora: what they were made of.
        weights: theirs by name.
        folder: a new one.

    Raises:
        BackendError: there is no room for it.
    """
    layers = {path.rpartition(".")[2] for path, layer in model.named_modules() if isinstance(layer, adapters.Linear)}
    settings = _settings(lora, sorted(layers))
    settings.inference_mode = True
    folder.mkdir()
    settings.save_pretrained(str(folder))
    named = {f"base_model.model.{name.replace(f'.{_ADAPTER}.', '.')}": weight for name, weight in weights.items()}
    write_weights(named, folder / "adapter_model.safetensors")


def _settings(lora: LoraOptions, targets: Sequence[str]) -> peft.LoraConfig:
    return peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=list(targets), task_type="CAUSAL_LM"
    )


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
