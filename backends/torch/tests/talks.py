"""Conversations in which the answers are given by their token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from spangrad.backend import FinishReason, SampleDelta, Sampler, SampleRequest, SamplingParams
from spangrad.gateway import EngineRequest, TokenEngine
from spangrad.gateway._branches import Branches
from spangrad.transitions import Continuation, Transition
from spangrad_torch._chat_format import TemplateFormat

CALC: dict[str, Any] = {"name": "calc", "description": "Computes.", "parameters": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": CALC}]
QUESTION = {"role": "user", "content": "cab?"}
MORE = {"role": "user", "content": "and?"}


def tokenizer_of(folder: Path, template: str | None = None) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


@dataclass
class PlayedSampler:
    """Samples the ids it is told, whatever the prompt."""

    form: TemplateFormat
    answers: list[tuple[Sequence[int], FinishReason]]
    context_length: int = 10_000
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def sample(self, request: SampleRequest) -> AsyncIterator[SampleDelta]:
        self.prompts.append(request.prompt_ids)
        ids, reason = self.answers.pop(0)
        text = self.form.decode(ids, skip_special=True)
        yield SampleDelta(0, tuple(ids), (-1.0,) * len(ids), text, 0, reason)


@dataclass
class Talk:
    """Calls of one rollout, each going on with all that was said before."""

    engine: TokenEngine
    branches: Branches = field(default_factory=Branches)
    messages: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    tools: Sequence[dict[str, Any]] = tuple(TOOLS)

    async def go_on(self, *added: dict[str, Any], **params: Any) -> tuple[Continuation, Transition]:
        """Adds messages and the answer to them."""
        self.number += 1
        self.messages += added
        settings = SamplingParams(**{"max_tokens": 24, **params})
        request = EngineRequest(
            "m", list(self.messages), self.tools, None, settings, True, 1, False, 0, False, {}, f"c{self.number}", self.branches
        )  # fmt: skip
        deltas = [delta async for delta in self.engine.chat(request)]
        text = "".join(delta.text for delta in deltas)
        calls = [call for delta in deltas for call in delta.tool_calls]
        self.messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
        prompt, origin = deltas[0].prompt_ids, deltas[0].continuation
        assert prompt is not None
        assert origin is not None
        action = tuple(token for delta in deltas for token in delta.token_ids or ())
        logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs or ())
        row = Transition(
            "r", 0, "g", request.call_id, 0, 0, None, "p", 0, prompt, action, logprobs, 1.0, 1.0, 0, None, 0.0
        )
        return origin, row

    def result(self) -> dict[str, Any]:
        """A tool's answer to the last call."""
        return {"role": "tool", "tool_call_id": self.messages[-1]["tool_calls"][0]["id"], "content": "2"}


def played(form: TemplateFormat, *answers: tuple[Sequence[int], FinishReason]) -> Talk:
    sampler: Sampler = PlayedSampler(form, list(answers))
    return Talk(TokenEngine(sampler, form, "played"))
