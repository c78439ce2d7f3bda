"""An answer while it is made: collects an engine's deltas, and is what goes to the agent and into the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spangrad.gateway._engine import EngineDelta
from spangrad.transitions import Choice, Continuation


class AnswerChoice:
    """One choice of an answer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.logprob_content: list[Mapping[str, Any]] = []
        self.tool_calls: list[Mapping[str, Any]] = []
        self._text: list[str] = []
        self._extra: dict[str, Any] = {}
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._has_ids = self._has_logprobs = True

    def add(self, delta: EngineDelta) -> None:
        """Takes in a delta. Ids are known only if every delta with content has them."""
        self._text.append(delta.text)
        self.tool_calls += delta.tool_calls
        self.logprob_content += delta.logprob_content
        for name, value in delta.extra.items():
            joined = isinstance(value, str) and isinstance(self._extra.get(name), str)
            self._extra[name] = self._extra[name] + value if joined else value
        if delta.token_ids is None:
            self._has_ids &= not (delta.text or delta.tool_calls)
        else:
            self._ids += delta.token_ids
            self._logprobs += delta.logprobs or ()
            self._has_logprobs &= delta.logprobs is not None or not delta.token_ids
        self.finish_reason = delta.finish_reason or self.finish_reason

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The sampled ids; None when the engine did not say."""
        return tuple(self._ids) if self._has_ids and self._ids else None

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message in OpenAI's shape."""
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if self.tool_calls else ""),
            "refusal": None,
        }
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return {**message, **self._extra}

    def record(self) -> Choice:
        """What the store keeps."""
        ids = self.token_ids
        return Choice(
            index=self.index,
            token_ids=ids,
            logprobs=tuple(self._logprobs) if ids is not None and self._has_logprobs else None,
            finish_reason=self.finish_reason,
            message=self.message,
        )


class Answer:
    """All choices of an answer, and what they share."""

    def __init__(self) -> None:
        self.prompt_ids: tuple[int, ...] | None = None
        self.continuation: Continuation | None = None
        self.policy_version: int | None = None
        """The oldest version any of its tokens was sampled by, so that staleness is never understated."""
        self._usage: Mapping[str, Any] | None = None
        self._choices: dict[int, AnswerChoice] = {}

    def add(self, delta: EngineDelta) -> None:
        """Takes in a delta."""
        if delta.prompt_ids is not None:
            self.prompt_ids = delta.prompt_ids
        if delta.policy_version is not None:
            known = self.policy_version
            self.policy_version = delta.policy_version if known is None else min(known, delta.policy_version)
        self.continuation = delta.continuation or self.continuation
        self._usage = delta.usage or self._usage
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = AnswerChoice(delta.choice)
        choice.add(delta)

    @property
    def choices(self) -> list[AnswerChoice]:
        """In the order of their indices."""
        return [self._choices[index] for index in sorted(self._choices)]

    def usage(self) -> Mapping[str, Any]:
        """OpenAI's token counts: the engine's own, else counted from the ids (0 without ids)."""
        if self._usage is not None:
            return self._usage
        prompt = len(self.prompt_ids or ())
        completion = sum(len(choice.token_ids or ()) for choice in self._choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def records(self) -> tuple[Choice, ...]:
        """What the store keeps of the choices."""
        return tuple(choice.record() for choice in self.choices)
