"""A Hugging Face folder of the trained model, for plain transformers or any server that takes one."""

from __future__ import annotations

from pathlib import Path

from spangrad_torch._adapters import merged_weights
from spangrad_torch._folder import written_whole
from spangrad_torch._model import LoadedModel
from spangrad_torch._pretrained import quiet


def export_model(loaded: LoadedModel, folder: Path) -> None:
    """Writes weights (adapters merged), configuration, tokenizer and the chat template the model was trained with.

    Raises:
        CheckpointError: the disk is full or may not be written; what was there before is untouched.
    """
    with written_whole(folder) as partial, quiet():
        loaded.model.save_pretrained(partial, state_dict=dict(merged_weights(loaded.model)))
        loaded.tokenizer.save_pretrained(partial)
