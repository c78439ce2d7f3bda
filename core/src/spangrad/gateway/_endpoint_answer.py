"""Reads an OpenAI-compatible server's answer: whole, or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from spangrad.gateway._engine import EngineDelta, EngineError
from spangrad.transitions import Continuation, Continuity

_ENDPOINT: Final = Continuation(Continuity.ENDPOINT)
_KNOWN: Final = frozenset({"role", "content", "tool_calls"})


def answer_deltas(body: Mapping[str, Any], policy_version: int | None) -> Iterator[EngineDelta]:
    """The choices of a whole answer, one delta each.

    Raises:
        EngineError: 502, the answer is not in OpenAI's shape.
    """
    yield from _deltas(body, "message", policy_version)


def chunk_deltas(chunk: Mapping[str, Any], policy_version: int | None) -> Iterator[EngineDelta]:
    """The choices of one chunk of a stream.

    Raises:
        EngineError: 502, the chunk is not in OpenAI's shape.
    """
    yield from _deltas(chunk, "delta", policy_version)


def _deltas(body: Mapping[str, Any], part: str, policy_version: int | None) -> Iterator[EngineDelta]:
    prompt_ids = _ids(body.get("prompt_token_ids"))
    try:
        for choice in body["choices"]:
            yield _delta(choice, choice[part], prompt_ids, policy_version)
            prompt_ids = None
        if usage := body.get("usage"):
            yield EngineDelta(usage=usage)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EngineError(f"The endpoint's answer is not in OpenAI's shape: {error!r}", status=502) from error


def _delta(
    choice: Mapping[str, Any],
    message: Mapping[str, Any],
    prompt_ids: tuple[int, ...] | None,
    policy_version: int | None,
) -> EngineDelta:
    entries = (choice.get("logprobs") or {}).get("content")
    return EngineDelta(
        choice=choice["index"],
        text=message.get("content") or "",
        tool_calls=tuple(message.get("tool_calls") or ()),
        extra={name: value for name, value in message.items() if name not in _KNOWN and value is not None},
        prompt_ids=prompt_ids,
        continuation=_ENDPOINT,
        token_ids=_ids(choice.get("token_ids")),
        logprobs=None if entries is None else tuple(float(entry["logprob"]) for entry in entries),
        logprob_content=tuple(entries or ()),
        policy_version=policy_version,
        finish_reason=choice.get("finish_reason"),
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)
