"""A Hugging Face folder of the trained model, adapters merged."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from spangrad_torch import read_pretrained
from spangrad_verl._model_folder import ModelFolder


def write_model(group: Any, model: ModelFolder, folder: Path) -> None:
    """Writes the present weights and all that belongs to them.

    Args:
        group: the workers.
        model: as it was loaded.
        folder: an empty one.
    """
    with TemporaryDirectory(dir=folder.parent) as place:
        group.write_weights(place, "float32")
        if not (Path(place) / "adapter_config.json").is_file():
            for file in Path(place).iterdir():
                file.rename(folder / file.name)
        else:
            whole = read_pretrained(model.folder, AutoModelForCausalLM, dtype=torch.float32)
            merged = PeftModel.from_pretrained(whole, place).merge_and_unload()
            merged.save_pretrained(folder)
    model.write_rest(folder)
