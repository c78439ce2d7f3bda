"""Converts a GGUF file to a Hugging Face folder, once, and keeps it in spangrad's cache.

The cache is `SPANGRAD_CACHE`, else the platform's folder for caches. Loading a GGUF takes up to a minute, loading the folder
seconds.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from platformdirs import user_cache_path
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from spangrad.errors import BackendError, ModelNotFoundError
from spangrad_torch._pretrained import read_pretrained

_log = logging.getLogger(__name__)


def _cache_folder() -> Path:
    """Where converted models are kept."""
    chosen = os.environ.get("SPANGRAD_CACHE")
    return (Path(chosen).expanduser() if chosen else user_cache_path("spangrad", appauthor=False)) / "models"


def converted_folder(file: Path) -> Path:
    """The Hugging Face folder of a GGUF file, converting it when it is not in the cache yet.

    Safe with several processes at once: one converts, the others wait, and the folder appears whole or not at all.
    """
    if not file.is_file():
        raise ModelNotFoundError(f"There is no file {file}")
    cache = _cache_folder()
    folder = cache / f"{file.stem}-{_fingerprint(file)}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if folder.is_dir():
                return folder
            temporary = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache))
            try:
                _convert(file, temporary)
                temporary.replace(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        raise BackendError(
            f"The converted model cannot be kept in {cache}: {error}",
            cure="Free some disk space, or set SPANGRAD_CACHE to a folder that can be written",
        ) from error
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Writes a GGUF's weights (fp32), configuration and tokenizer as a Hugging Face folder."""
    _log.info("Converting %s to a Hugging Face folder, once; this takes up to a minute", file.name)
    tokenizer = read_pretrained(file.parent, AutoTokenizer, gguf_file=file.name)
    model = read_pretrained(file.parent, AutoModelForCausalLM, gguf_file=file.name, dtype=torch.float32)
    # Both mark the weights as quantised, which they no longer are, and keep save_pretrained from writing them.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.config._name_or_path = file.stem  # noqa: SLF001 - the only place transformers keeps a model's name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _log.info("Converted %s", file.name)


def _fingerprint(file: Path) -> str:
    """Tells files apart by size, beginning and end; reading gigabytes at every start would be worse than a collision."""
    window = 1 << 20
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(window)
        stream.seek(max(0, size - window))
        tail = stream.read(window)
    return hashlib.sha256(b"%d:" % size + head + tail).hexdigest()[:12]
