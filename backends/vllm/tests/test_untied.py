"""Models whose output layer is their embedding, written as two layers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spangrad.errors import BackendError
from spangrad_vllm._untied import is_tied, untie

EMBEDDING = bytes(range(24))


def written(
    folder: Path, tensors: Mapping[str, bytes], config: Mapping[str, Any], file: str = "model.safetensors"
) -> Path:
    """A folder whose tensors are rows of two float16."""
    header, data = {}, b""
    for name, value in tensors.items():
        offsets = [len(data), len(data) + len(value)]
        header[name] = {"dtype": "F16", "shape": [len(value) // 4, 2], "data_offsets": offsets}
        data += value
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder.mkdir()
    (folder / file).write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(file: Path) -> tuple[dict[str, Any], bytes]:
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def test_the_output_layer_is_the_embedding_under_its_own_name_and_the_rest_is_linked(tmp_path: Path) -> None:
    config = {"tie_word_embeddings": True, "text_config": {"hidden_size": 2}}
    tensors = {"model.norm.weight": b"norm", "model.embed_tokens.weight": EMBEDDING}
    folder = written(tmp_path / "model", tensors, config)

    found = untie(folder, tmp_path / "untied")

    header, data = read(found / "lm_head.safetensors")
    assert header == {"lm_head.weight": {"dtype": "F16", "shape": [6, 2], "data_offsets": [0, 24]}}
    assert data == EMBEDDING
    assert json.loads((found / "config.json").read_text()) == {
        "tie_word_embeddings": False,
        "text_config": {"hidden_size": 2, "tie_word_embeddings": False},
    }
    assert (found / "model.safetensors").resolve() == folder / "model.safetensors"
    assert json.loads((folder / "config.json").read_text()) == config
    assert not is_tied(found)


def test_an_index_names_the_new_file(tmp_path: Path) -> None:
    file = "model-00001-of-00001.safetensors"
    folder = written(tmp_path / "model", {"model.embed_tokens.weight": EMBEDDING}, {}, file)
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": file}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    found = untie(folder, tmp_path / "untied")

    told = json.loads((found / "model.safetensors.index.json").read_text())
    assert told["weight_map"] == {"model.embed_tokens.weight": file, "lm_head.weight": "lm_head.safetensors"}


def test_a_model_of_two_layers_stays_where_it_is(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", {"lm_head.weight": EMBEDDING}, {})

    assert untie(folder, tmp_path / "untied") == folder
    assert not (tmp_path / "untied").exists()


def test_a_model_without_a_known_embedding_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", {"words": EMBEDDING}, {})

    with pytest.raises(BackendError, match="neither an output layer nor an embedding") as caught:
        untie(folder, tmp_path / "untied")
    assert 'adapter = "lora"' in caught.value.cure
