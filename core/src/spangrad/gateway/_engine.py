"""What answers a chat request: the engine protocol, its request, and what it yields."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spangrad.backend import Message, SamplingParams
from spangrad.errors import GatewayError
from spangrad.gateway._branches import Branches
from spangrad.transitions import Continuation


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One chat request, with the sampling settings that are really to be used."""

    model: str
    """The alias the agent asked for."""
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | None
    params: SamplingParams
    """What the agent asked for after the rollout's overrides. `max_tokens` counts only if `limited` is true."""
    limited: bool
    """Somebody set `max_tokens`; otherwise the engine takes its own default."""
    choices: int
    logprobs: bool
    """The agent wants log-probabilities in its answer; the call's own are recorded either way."""
    top_logprobs: int
    stream: bool
    """The agent reads the answer as it is made; an engine may still yield it in one piece."""
    body: Mapping[str, Any]
    """The chat completions body: as the agent sent it, or what its request of the Responses API comes to."""
    call_id: str = ""
    branches: Branches | None = None
    """The earlier answers of the rollout's attempt, which the call may go on from; None for a call of no rollout."""


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """What an engine has produced since its previous delta of the same choice."""

    choice: int = 0
    text: str = ""
    """Content for the agent; never part of a tool call."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Whole tool calls in OpenAI's shape, once they are parsed."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the assistant message (reasoning_content ...); texts are joined, other values replaced."""
    prompt_ids: tuple[int, ...] | None = None
    """The ids the engine was prompted with; on the first delta that knows them."""
    token_ids: tuple[int, ...] | None = None
    """Ids sampled for this delta; None when the engine does not say."""
    logprobs: tuple[float, ...] | None = None
    """As long as `token_ids`; None when the engine does not say."""
    logprob_content: tuple[Mapping[str, Any], ...] = ()
    """The same in OpenAI's shape (token, logprob, bytes, top_logprobs), when the agent asked for it."""
    continuation: Continuation | None = None
    """Where the prompt's ids came from; on the first delta."""
    policy_version: int | None = None
    usage: Mapping[str, Any] | None = None
    """Token counts of the whole answer as the engine has them; without them they are counted from the ids."""
    finish_reason: str | None = None
    """OpenAI's word, on the last delta of the choice: stop, length, tool_calls, content_filter."""


class Engine(Protocol):
    """Answers chat requests of one model."""

    @property
    def name(self) -> str:
        """How the store and error messages call it: a model's name or an endpoint's URL."""
        ...

    def chat(self, request: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
        """Answers; closing the generator stops the work.

        Raises:
            EngineError: the request cannot be honoured (status 4xx), or answering failed (5xx).
        """
        ...

    async def close(self) -> None:
        """Lets go of connections; called once, on the gateway's loop, when the gateway stops."""
        ...


class EngineError(GatewayError):
    """An engine that cannot or will not answer, in the terms an OpenAI client understands.

    Args:
        what: what happened.
        cure: what to do about it.
        status: HTTP status the agent gets.
        code: OpenAI's machine-readable code, such as context_length_exceeded.
        param: the request's field at fault.
        headers: further response headers (retry-after).
    """

    def __init__(
        self,
        what: str,
        *,
        cure: str = "",
        status: int = 500,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, cure=cure)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def __reduce__(self) -> tuple[object, ...]:
        fields = {"cure": self.cure, "status": self.status, "code": self.code, "param": self.param}
        return (_rebuild, (self.what, {**fields, "headers": self.headers}))


def _rebuild(what: str, fields: dict[str, Any]) -> EngineError:
    """Unpickles an error."""
    return EngineError(what, **fields)
