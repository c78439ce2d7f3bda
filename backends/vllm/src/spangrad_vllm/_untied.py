"""A model whose output layer shares its weights with the embedding, as one in which they are two.

vLLM on a CPU packs the output layer's weights for its kernels. Where they are the embedding's, `reload_weights` loads the embedding
anew and keeps the packed copy of the old ones ("ParallelLMHead: Failed to load weights", seen in vLLM 0.32), so answers would be drawn
with weights that never were. Two layers are reloaded as two. This can go when vLLM packs tied weights anew.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any, Final

from spangrad.errors import BackendError
from spangrad_vllm._safetensors import begins, tensors

_OUTPUT: Final = "lm_head.weight"
_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
_CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_FILE: Final = "lm_head.safetensors"
_CHUNK: Final = 1 << 24


def is_tied(folder: Path) -> bool:
    """Whether a Hugging Face folder holds no output layer of its own."""
    return all(name != _OUTPUT for name, _, _ in tensors(folder))


def untie(folder: Path, into: Path) -> Path:
    """A folder of the same model with an output layer of its own.

    Args:
        folder: as transformers saves a model.
        into: a new folder; the first one's files are linked from it.

    Returns:
        `into`; or `folder`, where its layers are two already.

    Raises:
        BackendError: the embedding is not found, or the folder cannot be written.
    """
    if not is_tied(folder):
        return folder
    try:
        into.mkdir(parents=True)
        for file in folder.iterdir():
            (into / file.name).symlink_to(file.resolve())
        _write_output(folder, into / _FILE)
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        for part in (config, config.get("text_config")):
            if isinstance(part, dict):
                part["tie_word_embeddings"] = False
        _replace(into / _CONFIG, config)
        if (folder / _INDEX).is_file():
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            index["weight_map"][_OUTPUT] = _FILE
            _replace(into / _INDEX, index)
    except OSError as error:
        shutil.rmtree(into, ignore_errors=True)
        raise BackendError(
            f"The model's output layer cannot be written to {into}: {error}", cure="Make room there"
        ) from error
    return into


def _write_output(folder: Path, path: Path) -> None:
    """Copies the embedding under the output layer's name."""
    for name, file, told in tensors(folder):
        if not name.endswith(_EMBEDDINGS):
            continue
        begin, end = told["data_offsets"]
        header = json.dumps({_OUTPUT: {**told, "data_offsets": [0, end - begin]}}).encode()
        header += b" " * (-len(header) % 8)
        with file.open("rb") as source, path.open("wb") as target:
            source.seek(begins(source) + begin)
            target.write(struct.pack("<Q", len(header)) + header)
            left = end - begin
            while left:
                left -= target.write(source.read(min(left, _CHUNK)))
        return
    raise BackendError(
        f"{folder} has neither an output layer nor an embedding whose name is known",
        cure='On a CPU vLLM can take its new weights only as adapters: adapter = "lora"',
    )


def _replace(path: Path, data: dict[str, Any]) -> None:
    path.unlink()
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")
