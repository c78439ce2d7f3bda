"""What the two OpenAI APIs have in common: a request that comes to a chat request, and an answer written in the API's own JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic_core import to_json

from spangrad.backend import SamplingParams
from spangrad.gateway._answer import Answer
from spangrad.gateway._engine import EngineDelta, EngineError
from spangrad.gateway._request import ChatBody
from spangrad.gateway._response_memory import ResponseMemory


def sse(body: Any, event: str = "") -> bytes:
    """One server-sent event.

    Args:
        body: its data.
        event: its name, if it has one.
    """
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + to_json(body) + b"\n\n"


class Wire(Protocol):
    """Writes one call's answer as its API has it, whole or as a stream."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    def progress(self, delta: EngineDelta) -> bytes:
        """What a delta adds to a stream while it is sampled. How the answer ends waits for `ending`."""
        ...

    def ending(self, answer: Answer) -> bytes:
        """What completes a stream: everything that says the answer is whole."""
        ...

    def failure(self, error: EngineError) -> bytes:
        """What ends a stream that failed after it had begun."""
        ...


class Question(Protocol):
    """A request that was read."""

    @property
    def body(self) -> Mapping[str, Any]:
        """The chat completions request it comes to; the sent one itself where it is one."""
        ...

    def wire(self, call_id: str, created: float, chat: ChatBody, params: SamplingParams) -> Wire:
        """What writes its answer.

        Args:
            call_id: of the call; the answer's id is made of it.
            created: Unix seconds.
            chat: `body`, validated.
            params: with what the answer is really sampled.
        """
        ...

    def remember(self, call_id: str, answer: Answer, memory: ResponseMemory) -> None:
        """Keeps of an answered call what later requests may refer to."""
        ...


class Dialect(Protocol):
    """One of OpenAI's APIs."""

    def read(self, body: Mapping[str, Any], memory: ResponseMemory) -> Question:
        """Reads a request.

        Args:
            body: its JSON.
            memory: of the caller's earlier responses.

        Raises:
            EngineError: 400, naming what is wrong.
        """
        ...
