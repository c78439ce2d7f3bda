"""The model as it was loaded: a Hugging Face folder with its chat format, found as the torch backend finds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from spangrad.errors import BackendError
from spangrad_torch import TemplateFormat, find_model, read_pretrained


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that verl and vLLM can both load."""

    folder: Path
    origin: str
    """Where the model came from, in words."""
    tokenizer: PreTrainedTokenizerBase
    chat_format: TemplateFormat
    config: Any
    """transformers' configuration of the model."""

    @classmethod
    def find(cls, name: str) -> Self:
        """Locates it; a GGUF is converted first.

        Raises:
            ModelNotFoundError: there is no such model.
            BackendError: its tokenizer has no chat template that can be used, or it is no language model that verl trains.
        """
        found = find_model(name)
        tokenizer = read_pretrained(found.folder, AutoTokenizer)
        config = read_pretrained(found.folder, AutoConfig)
        kinds = list(getattr(config, "architectures", None) or [])
        if len(kinds) != 1 or not kinds[0].endswith("ForCausalLM"):
            raise BackendError(
                f"{found.folder} holds {' and '.join(kinds) or 'a model of no named architecture'}, which is not trained here",
                cure="Choose a model whose config.json names one architecture that ends in ForCausalLM",
            )
        return cls(found.folder, found.origin, tokenizer, TemplateFormat(tokenizer), config)

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return int(self.config.get_text_config().max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ids = None
        if (self.folder / "generation_config.json").is_file():
            ids = read_pretrained(self.folder, GenerationConfig).eos_token_id
        return self.chat_format.end_ids | frozenset([ids] if isinstance(ids, int) else ids or ())

    def write_rest(self, folder: Path) -> None:
        """Puts beside weights what belongs to them: configuration, tokenizer and the chat template that is trained with."""
        self.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        generation = self.folder / "generation_config.json"
        if generation.is_file():
            (folder / generation.name).write_bytes(generation.read_bytes())
