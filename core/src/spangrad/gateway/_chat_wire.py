"""OpenAI's chat completions: requests, whole answers, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spangrad.backend import SamplingParams
from spangrad.gateway._answer import Answer, AnswerChoice
from spangrad.gateway._engine import EngineDelta, EngineError
from spangrad.gateway._errors import error_body
from spangrad.gateway._request import ChatBody
from spangrad.gateway._response_memory import ResponseMemory
from spangrad.gateway._wire import Wire, sse

DONE: Final = b"data: [DONE]\n\n"


class ChatDialect:
    """`POST /v1/chat/completions`."""

    def read(self, body: Mapping[str, Any], memory: ResponseMemory) -> ChatQuestion:  # noqa: ARG002 - Dialect's signature
        """The request as it is; its conversation is all there."""
        return ChatQuestion(body)


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A chat completions request."""

    body: Mapping[str, Any]

    def wire(self, call_id: str, created: float, chat: ChatBody, params: SamplingParams) -> Wire:  # noqa: ARG002 - Question's signature
        """What writes its answer."""
        return ChatWire(call_id, created, chat)

    def remember(self, call_id: str, answer: Answer, memory: ResponseMemory) -> None:
        """Nothing: chat completions refer to no earlier ones."""


class ChatWire:
    """Writes a chat completion.

    Args:
        call_id: of the call; the answer's id is made of it.
        created: Unix seconds.
        chat: what the agent asked for: model, log-probabilities, token ids (`return_token_ids`, as vLLM has it), usage.
    """

    def __init__(self, call_id: str, created: float, chat: ChatBody) -> None:
        self._head = {"id": f"chatcmpl-{call_id}", "created": int(created), "model": chat.model}
        self._logprobs = bool(chat.logprobs)
        self._token_ids = bool(chat.return_token_ids)
        self._include_usage = chat.include_usage
        self._begun: set[int] = set()
        """Choices whose role was sent."""

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

    def progress(self, delta: EngineDelta) -> bytes:
        """A delta's content, as chunks."""
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
        return b"".join(map(sse, chunks))

    def ending(self, answer: Answer) -> bytes:
        """Tool calls and finish reasons, and the usage if it was asked for."""
        chunks = []
        for choice in answer.choices:
            calls = [{**call, "index": i} for i, call in enumerate(choice.tool_calls)]
            if calls:
                chunks.append(self._chunk(choice.index, {"tool_calls": calls}))
            chunks.append(self._chunk(choice.index, {}, finish_reason=choice.finish_reason))
        if self._include_usage:
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            chunks.append({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": answer.usage()})
        return b"".join(map(sse, chunks)) + DONE

    def failure(self, error: EngineError) -> bytes:
        """The error as the stream's last event."""
        return sse(error_body(error))

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
