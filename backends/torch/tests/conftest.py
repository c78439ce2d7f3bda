"""A model small enough to sample and train in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# What takes how long is the machine's affair, and the same examples every time make a failure repeatable.
settings.register_profile("spangrad", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spangrad")

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tiny tensors gain nothing from threads, and one thread gives the same numbers everywhere."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: random 2-layer Llama with grouped queries, and a tokenizer of single bytes."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def merging_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The like, with a tokenizer that has a token for every two small letters, so that texts have several tokenisations."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    merges = [(one, other) for one in letters for other in letters]
    return make_tiny_model(tmp_path_factory.mktemp("merging-model"), merges)


def make_tiny_model(folder: Path, merges: Sequence[tuple[str, str]] = (), *, width: int = 32) -> Path:
    """Writes a model and its tokenizer into an empty folder. It has four heads, which share its width."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL_TOKENS, *alphabet, *map("".join, merges)]
    vocabulary = {token: i for i, token in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers'
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
