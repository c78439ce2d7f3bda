"""What is said of the machine before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from backends.verl.tests.settings import ON_CPU

from spangrad.errors import BackendError
from spangrad_verl import _hardware
from spangrad_verl._checked import read_options
from spangrad_verl._hardware import needed_bytes, require_hardware
from spangrad_verl._model_folder import ModelFolder
from spangrad_verl.plugin import VerlFactory

pytestmark = pytest.mark.verl

WITHOUT_FLASH = {
    "actor_rollout_ref.model": {"use_remove_padding": False, "override_config": {"attn_implementation": "sdpa"}}
}
NUMBERS = 259 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32
"""Of the model of conftest.py: embedding; twice q and o, k and v, the three of the MLP, two norms; the last norm."""


@pytest.fixture
def model(model_folder: Path) -> ModelFolder:
    return ModelFolder.find(str(model_folder))


def verl(**options: Any) -> Any:
    return read_options({**WITHOUT_FLASH, **options}).verl


def test_a_machine_without_a_gpu_is_refused_before_ray_starts(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hardware, "gpu_memory", list)

    with pytest.raises(BackendError, match=r"to use 1 GPU of this machine, and it shows none\. .*backend = \"torch\""):
        VerlFactory().create({"model": str(model_folder), **WITHOUT_FLASH}, seed=0)


def test_too_few_gpus_are_refused(model: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hardware, "gpu_memory", lambda: [2**34])

    with pytest.raises(BackendError, match="to use 4 GPUs of this machine, and it shows 1"):
        require_hardware(verl(**{"trainer.n_gpus_per_node": 4}), model)


def test_too_little_memory_is_refused_with_the_ways_out(model: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hardware, "gpu_memory", lambda: [16 * NUMBERS - 1])
    with pytest.raises(BackendError, match=r"take 0\.0 GiB of each GPU.*lora_rank.*param_offload"):
        require_hardware(verl(), model)

    monkeypatch.setattr(_hardware, "gpu_memory", lambda: [16 * NUMBERS])
    require_hardware(verl(), model)


def test_gpus_are_those_that_torch_sees_and_what_goes_wrong_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _hardware.gpu_memory() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(_hardware.gpu_memory()) == torch.cuda.device_count()

    monkeypatch.setattr(_hardware, "_SCRIPT", "raise RuntimeError('the driver is too old')")
    with pytest.raises(BackendError, match=r"does not say which GPUs there are: RuntimeError: the driver is too old\."):
        _hardware.gpu_memory()


def test_memory_is_that_of_weights_gradients_and_moments(model: ModelFolder) -> None:
    assert needed_bytes(verl(), model) == 16 * NUMBERS
    lora = {**WITHOUT_FLASH["actor_rollout_ref.model"], "lora_rank": 4}
    assert needed_bytes(read_options({"actor_rollout_ref.model": lora}).verl, model) == 4 * NUMBERS
    offload = {"actor_rollout_ref.actor.fsdp_config": {"optimizer_offload": True}}
    assert needed_bytes(verl(**offload), model) == 8 * NUMBERS


def test_attention_that_is_not_installed_is_said(model: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hardware, "find_spec", lambda _: None)

    with pytest.raises(BackendError, match=r"flash-attn is not installed\. .*sdpa"):
        require_hardware(read_options({}).verl, model)


def test_a_cpu_is_refused_where_verl_has_no_platform_for_it(
    model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_hardware(read_options(ON_CPU).verl, model)
    monkeypatch.delenv("VERL_PLATFORM")

    with pytest.raises(BackendError, match=r'verl computes on GPUs only\. Use backend = "torch"'):
        require_hardware(read_options(ON_CPU).verl, model)


def test_a_model_that_is_no_language_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))

    with pytest.raises(BackendError, match="LlamaForSequenceClassification, which is not trained here"):
        ModelFolder.find(str(folder))
