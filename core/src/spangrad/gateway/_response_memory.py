"""The conversations that requests of the Responses API may go on from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from spangrad.backend import Message
from spangrad.gateway._engine import EngineError

_MOST_RESPONSES: Final = 256


class ResponseMemory:
    """What was said up to and including each of the latest responses of one rollout's attempt.

    Args:
        most: how many responses are remembered; the one used least recently is forgotten first.
    """

    def __init__(self, most: int = _MOST_RESPONSES) -> None:
        self._most = most
        self._conversations: OrderedDict[str, tuple[Message, ...]] = OrderedDict()

    def keep(self, response_id: str, messages: Iterable[Message]) -> None:
        """Remembers a response.

        Args:
            response_id: under which id.
            messages: the conversation, the response's own message last; without `instructions`, which hold for one request only.
        """
        self._conversations[response_id] = tuple(messages)
        while len(self._conversations) > self._most:
            self._conversations.popitem(last=False)

    def recall(self, response_id: str) -> tuple[Message, ...]:
        """The conversation up to and including a response.

        Raises:
            EngineError: 400, it is another rollout's, was sent with `store` false, or is forgotten.
        """
        messages = self._conversations.get(response_id)
        if messages is None:
            raise EngineError(
                f"The previous response {response_id[:100]!r} is not known here",
                cure=f"Send the conversation as `input`; only a rollout's own latest {self._most} stored responses are remembered",
                status=400,
                code="previous_response_not_found",
                param="previous_response_id",
            )
        self._conversations.move_to_end(response_id)
        return messages

    def clear(self) -> None:
        """Forgets everything."""
        self._conversations.clear()
