"""Tries out whether the decoder gets the same from a model as a plain forward pass.

Architectures differ in what they keep between tokens. One that keeps something else than keys and values of every token would
be sampled wrongly without any error, so each model is tried with a few tokens before it is used.
"""

from __future__ import annotations

from typing import Final

import torch
from transformers import PreTrainedModel

from spangrad.backend import SamplingParams
from spangrad.errors import BackendError
from spangrad_torch._decoder import Decoder, Row
from spangrad_torch._drawing import DrawnToken

_PROMPTS: Final = ((3, 4, 5, 6, 7), (3, 4, 8), (9,))
"""They share beginnings, so that branches of a prefill are tried too."""
_TOKENS: Final = 3
_TOLERANCE: Final = 0.01


def check_model(model: PreTrainedModel) -> bool:
    """Draws a few tokens and compares their log-probabilities with those of a plain forward pass.

    Returns:
        Whether rows may share stems: not all models hand their attention what it needs for that.

    Raises:
        BackendError: the model cannot be sampled, or not exactly.
    """
    if _fault(model, stem_cost=0) is None:
        return True
    if (fault := _fault(model, stem_cost=None)) is not None:
        raise BackendError(
            f"Models of the kind {type(model).__name__} cannot be sampled by this backend: {fault}",
            cure="Use a model with plain attention in all layers, such as Llama, SmolLM or Qwen",
        )
    return False


def _fault(model: PreTrainedModel, *, stem_cost: int | None) -> str | None:
    """What is wrong with the tokens that a decoder draws; None if nothing is."""
    drawn: list[list[float]] = [[] for _ in _PROMPTS]
    decoder = Decoder(model, max_rows=len(_PROMPTS), prefix_cache_bytes=0, stem_cost=stem_cost)
    rows = [_row(prompt, logprobs) for prompt, logprobs in zip(_PROMPTS, drawn, strict=True)]
    decoder.add(rows)
    try:
        while decoder.busy:
            decoder.step()
    except (
        RuntimeError,
        TypeError,
        AttributeError,
        IndexError,
    ) as error:  # what a foreign architecture makes of our cache
        return str(error)
    for prompt, row, logprobs in zip(_PROMPTS, rows, drawn, strict=True):
        expected = _plain_logprobs(model, row.ids, len(prompt))
        worst = max(abs(a - b) for a, b in zip(logprobs, expected, strict=True))
        if not worst < _TOLERANCE:
            return f"log-probabilities differ from those of a plain forward pass by up to {worst:.3g}"
    return None


def _row(prompt: tuple[int, ...], logprobs: list[float]) -> Row:
    """A greedy row that writes its log-probabilities down."""

    def take(token: DrawnToken) -> bool:
        logprobs.append(token.logprob)
        return len(logprobs) < _TOKENS

    return Row(list(prompt), SamplingParams(temperature=0), torch.Generator(), 0, take)


@torch.no_grad()
def _plain_logprobs(model: PreTrainedModel, ids: list[int], start: int) -> list[float]:
    """Log-probabilities of the ids from `start` on."""
    sequence = torch.tensor(ids, device=model.device)
    logits = model(sequence[None], use_cache=False).logits[0, start - 1 : -1].float()
    chosen: list[float] = logits.log_softmax(-1).gather(1, sequence[start:, None])[:, 0].tolist()
    return chosen
