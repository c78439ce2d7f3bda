"""One LLM invocation as the gateway saw it: what was asked, what was sampled, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spangrad.transitions._continuation import Continuation


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    """The whole answer was sampled and handed to the agent."""
    ERROR = "error"
    """The engine or the request failed; `Call.reason` says why."""
    LATE = "late"
    """It came after its attempt had been closed, and was refused."""
    UNDELIVERED = "undelivered"
    """The agent went away before it had the whole answer: a time-out, or a stream closed early."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled answer of a call (`n` of them when the agent asks for several)."""

    index: int
    token_ids: tuple[int, ...] | None
    """The sampled ids, the end-of-turn id included; None when the engine did not say."""
    logprobs: tuple[float, ...] | None
    """Log-probability of each sampled id under the distribution it was drawn from; as long as `token_ids`."""
    finish_reason: str | None
    """OpenAI's word: stop, length or tool_calls."""
    message: Mapping[str, Any]
    """The assistant message as the agent received it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP attempt of one LLM invocation."""

    call_id: str
    rollout_id: str | None
    """None for an orphan: a call that named no rollout."""
    attempt: int
    request_key: str
    """Equal for the HTTP attempts (retries) of one request, when the client says so; else the call id."""
    retry: int
    """Which HTTP attempt of the request this was, from 0, as the client counts."""
    received_at: float
    """Unix seconds. Calls of a rollout are ordered by it, then by call id."""
    finished_at: float | None
    model: str
    """The alias the agent asked for."""
    policy: str | None
    """The policy the route resolved it to; None when the alias is served by a frozen or external model."""
    policy_version: int | None
    endpoint: str
    """Name or URL of the engine that answered."""
    agent: str | None
    """Which of the rollout's agents called, when a framework hook or header says so."""
    status: CallStatus
    reason: str
    """Why `status` is not ok; empty otherwise."""
    prompt_ids: tuple[int, ...] | None
    """The exact ids the engine was prompted with; None when the engine did not say."""
    temperature: float
    top_p: float
    top_k: int
    """0 when not limited."""
    request: Mapping[str, Any]
    """The JSON body as the agent sent it."""
    choices: tuple[Choice, ...]
    state: str | None = None
    """What the agent called the state of its environment; None when it did not say."""
    score: float | None = None
    """How far along the agent said it was in that state."""
    continuation: Continuation | None = None
    """Where the prompt's tokens came from; None when the engine does not say, or the call belongs to no rollout."""
