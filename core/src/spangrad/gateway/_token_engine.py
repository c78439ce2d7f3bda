"""An engine over a token-in/token-out sampler: renders the chat, samples, reads tool calls out of the text."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from spangrad.backend import ChatFormat, SampleDelta, Sampler, SampleRequest
from spangrad.errors import BackendError
from spangrad.gateway._branches import Answered, Branches
from spangrad.gateway._conversation import Conversation
from spangrad.gateway._engine import EngineDelta, EngineError, EngineRequest
from spangrad.gateway._held_text import HeldText
from spangrad.gateway._prompt import Prompt, make_prompt
from spangrad.gateway._request import refuse_unsupported
from spangrad.gateway._response_format import told_messages
from spangrad.gateway._shown_tools import shown_tools
from spangrad.gateway._tool_choice import forced_opening

TOOL_CALL_MARK: Final = "<tool_call>"


class TokenEngine:
    """Answers chat requests with a backend's sampler and chat format.

    Args:
        sampler: draws the answers.
        chat_format: renders messages to ids and reads answers.
        name: how the store calls this engine.
        default_max_tokens: length limit of an answer when neither the agent nor the rollout sets one.
        tool_call_mark: with what a tool call begins in sampled text; text from there on is only handed out once it is parsed.
        on_close: ends a sampler of the engine's own; a backend's is the backend's to end.
    """

    def __init__(
        self,
        sampler: Sampler,
        chat_format: ChatFormat,
        name: str,
        *,
        default_max_tokens: int = 512,
        tool_call_mark: str = TOOL_CALL_MARK,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._sampler = sampler
        self._format = chat_format
        self._name = name
        self._default_max_tokens = default_max_tokens
        self._mark = tool_call_mark
        self._on_close = on_close

    @property
    def name(self) -> str:
        """How the store calls it."""
        return self._name

    async def chat(self, request: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
        """Answers; closing the generator stops the sampling.

        Raises:
            EngineError: the request cannot be honoured (400), or sampling failed (500).
        """
        refuse_unsupported(request.body)
        tools = () if request.tool_choice == "none" else shown_tools(request.tools)
        opening = forced_opening(tools, request.tool_choice)
        prompt = self._prompt(request, tools, opening)
        readers = [_ChoiceReader(self._format, tools, self._mark, opening) for _ in range(request.choices)]
        pending: Prompt | None = prompt
        try:
            async with _closing(self._sampler.sample(self._sample_request(request, prompt.ids))) as deltas:
                async for delta in deltas:
                    content = self._logprob_content(delta) if request.logprobs else ()
                    yield readers[delta.choice].read(delta, pending, content)
                    pending = None
        except BackendError as error:
            raise EngineError(error.what, cure=error.cure, status=500) from error
        if request.branches is not None:
            for reader in readers:
                request.branches.keep(reader.answered(request.call_id, prompt))

    async def close(self) -> None:
        """Ends the sampler, if it is the engine's own."""
        if self._on_close is not None:
            await self._on_close()

    def _prompt(self, request: EngineRequest, tools: Sequence[Mapping[str, Any]], opening: str) -> Prompt:
        """The prompt, which goes on from the rollout's earlier calls where that is right."""
        messages = told_messages(request.messages, request.body.get("response_format"))
        branches = Branches() if request.branches is None else request.branches
        try:
            return make_prompt(self._format, Conversation.of(self._name, messages, tools), opening, branches)
        except BackendError as error:
            raise EngineError(error.what, cure=error.cure, status=400) from error

    def _sample_request(self, request: EngineRequest, prompt_ids: tuple[int, ...]) -> SampleRequest:
        """Fits the answer's limit to the room the model has left."""
        room = self._sampler.context_length - len(prompt_ids)
        if room < 1:
            raise EngineError(
                f"The messages come to {len(prompt_ids)} tokens, and the model's context holds {self._sampler.context_length} "
                "with the answer",
                cure="Shorten the conversation",
                status=400,
                code="context_length_exceeded",
                param="messages",
            )
        wanted = request.params.max_tokens if request.limited else self._default_max_tokens
        params = dataclasses.replace(request.params, max_tokens=min(wanted, room))
        return SampleRequest(prompt_ids, params, request.top_logprobs, request.choices)

    def _logprob_content(self, delta: SampleDelta) -> tuple[Mapping[str, Any], ...]:
        """Per token of a delta, OpenAI's logprobs entry."""
        alternatives = delta.top_logprobs or ((),) * len(delta.token_ids)
        return tuple(
            {**self._token(token, logprob), "top_logprobs": [self._token(*pair) for pair in top]}
            for token, logprob, top in zip(delta.token_ids, delta.logprobs, alternatives, strict=True)
        )

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._format.decode((token_id,))
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


@asynccontextmanager
async def _closing(deltas: AsyncIterator[SampleDelta]) -> AsyncGenerator[AsyncIterator[SampleDelta], None]:
    """Closes the sampler's iterator in any case, which is what stops its work; plain iterators have nothing to close."""
    try:
        yield deltas
    finally:
        if isinstance(deltas, AsyncGenerator):
            await deltas.aclose()


class _ChoiceReader:
    """One choice on its way from sampled text to an assistant message."""

    def __init__(self, chat_format: ChatFormat, tools: Sequence[Mapping[str, Any]], mark: str, opening: str) -> None:
        self._format = chat_format
        self._tools = tools
        self._held = HeldText(mark) if tools else None
        if self._held is not None:
            self._held.add(opening)
        self._content: list[str] = []
        self._calls: list[Mapping[str, Any]] = []
        self._ids: list[int] = []
        self._finish_reason: str | None = None

    def read(
        self, delta: SampleDelta, prompt: Prompt | None, logprob_content: tuple[Mapping[str, Any], ...]
    ) -> EngineDelta:
        """What the agent may see of this delta, and its ids; those of the prompt too, if that is given."""
        text: str = delta.text
        calls: tuple[Mapping[str, Any], ...] = ()
        reason: str | None = delta.finish_reason
        if self._held is not None:
            text = self._held.add(delta.text)
            if reason is not None:
                parsed = self._format.parse(self._held.all, tools=self._tools)
                calls = parsed.tool_calls
                text += self._held.rest(parsed.content or "")
                reason = "tool_calls" if calls and reason == "stop" else reason
        self._content.append(text)
        self._calls += calls
        self._ids += delta.token_ids
        self._finish_reason = delta.finish_reason
        return EngineDelta(
            choice=delta.choice,
            text=text,
            tool_calls=calls,
            prompt_ids=None if prompt is None else prompt.ids,
            continuation=None if prompt is None else prompt.continuation,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            logprob_content=logprob_content,
            policy_version=delta.policy_version,
            finish_reason=reason,
        )

    def answered(self, call_id: str, prompt: Prompt) -> Answered:
        """The whole answer, to be gone on from."""
        message = {"role": "assistant", "content": "".join(self._content), "tool_calls": self._calls}
        return prompt.answered(call_id, message, self._ids, self._finish_reason)
