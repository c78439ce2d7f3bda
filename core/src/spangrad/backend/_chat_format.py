"""What turns chat messages into prompt ids, and sampled text into messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]
"""A chat message as in the OpenAI API: role, content, tool_calls, tool_call_id."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An assistant message read out of sampled text."""

    content: str | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """OpenAI tool calls: {"id", "type": "function", "function": {"name", "arguments"}}; arguments is a JSON string."""
    malformed: tuple[str, ...] = ()
    """Why text that looked like a tool call was left as text, one entry each."""


class ChatFormat(Protocol):
    """Turns chat messages into prompt ids and sampled text into messages; owned by whoever owns the tokenizer.

    Rendering has two halves, `write` and `encode`, so that a caller can compare what two conversations have in common before
    it makes ids, and make ids of a part only.
    """

    @property
    def turn_end(self) -> str:
        """What closes an assistant's turn in a written text. It stands for one id, and no text of a message contains it;
        empty for a template that closes no turn.
        """
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> tuple[int, ...]:
        """Prompt ids up to and including the header of the assistant's next turn, and `opening`, the text it has to begin with.
        The ids of `write`'s text.

        Raises:
            BackendError: a message the format cannot represent (an image, an unknown role).
        """
        ...

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> str:
        """The written text of which `encode` makes the ids of `render`.

        In it the control tokens of the chat cannot be mistaken for text of a message that looks like one; what stands for them
        is the format's own affair.

        Raises:
            BackendError: a message the format cannot represent (an image, an unknown role).
        """
        ...

    def encode(self, written: str) -> tuple[int, ...]:
        """The ids of a written text, or of a part of one that begins or ends at a control token or an assistant's header."""
        ...

    def plain(self, written: str) -> str:
        """A written text as `decode` would give it back."""
        ...

    def render_answer(self, message: Message) -> tuple[int, ...]:
        """The ids a model would have to sample to give `message` as its turn, end of turn included."""
        ...

    def parse(self, text: str, *, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedAnswer:
        """Reads tool calls out of sampled text; what is no well-formed call to one of `tools` stays content."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of `token_ids`."""
        ...
