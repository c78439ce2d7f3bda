"""The JSON of OpenAI's chat completions: whole answers, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from spangrad.gateway._answer import Answer, AnswerChoice
from spangrad.gateway._engine import EngineDelta

DONE: Final = b"data: [DONE]\n\n"


def sse(body: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(body) + b"\n\n"


class Wire:
    """Writes one call's answer.

    Args:
        call_id: of the call; the answer's id is made of it.
        model: the alias the agent asked for.
        created: Unix seconds.
        logprobs: the agent asked for log-probabilities.
        token_ids: the agent asked for token ids (`return_token_ids`, as vLLM has it).
    """

    def __init__(self, call_id: str, model: str, created: float, *, logprobs: bool, token_ids: bool) -> None:
        self._head = {"id": f"chatcmpl-{call_id}", "created": int(created), "model": model}
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._begun: set[int] = set()
        """Choices whose role was sent."""
        self._prompt_sent = False

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        body = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in answer.choices],
            "usage": answer.usage(),
        }
        if self._token_ids:
            body["prompt_token_ids"] = answer.prompt_ids
        return body

    def chunks(self, delta: EngineDelta) -> list[dict[str, Any]]:
        """What a delta adds to a stream while it is sampled: its content. How the choice ends waits for `endings`."""
        chunks = []
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            chunks.append(self._chunk(delta.choice, {"role": "assistant", "content": ""}))
        if self._token_ids and delta.prompt_ids is not None:
            chunks[0]["prompt_token_ids"] = delta.prompt_ids
        content = {"content": delta.text, **delta.extra} if delta.text else dict(delta.extra)
        ids = delta.token_ids if self._token_ids else None
        logprobs = delta.logprob_content if self._logprobs else ()
        if content or ids or logprobs:
            chunks.append(self._chunk(delta.choice, content, logprobs=logprobs, token_ids=ids))
        return chunks

    def endings(self, answer: Answer, *, include_usage: bool) -> list[dict[str, Any]]:
        """What completes a stream: tool calls and finish reasons, and the usage if it was asked for."""
        chunks = []
        for choice in answer.choices:
            calls = [{**call, "index": i} for i, call in enumerate(choice.tool_calls)]
            if calls:
                chunks.append(self._chunk(choice.index, {"tool_calls": calls}))
            chunks.append(self._chunk(choice.index, {}, finish_reason=choice.finish_reason))
        if include_usage:
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            chunks.append({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": answer.usage()})
        return chunks

    def _choice(self, choice: AnswerChoice) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": choice.index,
            "message": choice.message,
            "logprobs": {"content": choice.logprob_content, "refusal": None} if self._logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        if self._token_ids:
            body["token_ids"] = choice.token_ids
        return body

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: tuple[Mapping[str, Any], ...] = (),
        token_ids: tuple[int, ...] | None = None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": finish_reason,
        }
        if token_ids:
            body["token_ids"] = token_ids
        return {**self._head, "object": "chat.completion.chunk", "choices": [body]}
