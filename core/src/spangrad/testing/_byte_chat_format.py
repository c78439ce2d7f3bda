"""A chat format over bytes: every id below 256 is that byte, two more mark where turns begin and end."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spangrad.backend import Message, ParsedAnswer
from spangrad.errors import BackendError

START: Final = 256
END: Final = 257
_SPECIAL: Final = {START: "<|im_start|>", END: "<|im_end|>"}
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class ByteChatFormat:
    """A `ChatFormat` that needs no tokenizer and loses nothing: rendering is append-only and can be read back by `read`."""

    end_id: Final = END
    """Sampled at the end of every turn."""
    vocabulary: Final = 258
    """Number of ids."""
    turn_end: Final = chr(END)
    """`end_id` in a written text."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> tuple[int, ...]:
        """Prompt ids up to and including the header of the assistant's next turn, and `opening`, the text it has to begin with.

        Raises:
            BackendError: an unknown role, or a content part that is no text.
        """
        return self.encode(self.write(messages, tools=tools, opening=opening))

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> str:
        """The prompt with one character per id, the id's own.

        Raises:
            BackendError: an unknown role, or a content part that is no text.
        """
        turns: list[int] = []
        if tools:
            turns += _turn("tools", "\n".join(json.dumps(tool, separators=(",", ":")) for tool in tools))
        for message in messages:
            role = message["role"]
            if role not in _ROLES:
                raise BackendError(f"Unknown message role {role!r}", cure=f"Use one of: {', '.join(sorted(_ROLES))}")
            turns += _turn(role, _content(message))
        return "".join(map(chr, (*turns, START, *b"assistant\n", *opening.encode())))

    def encode(self, written: str) -> tuple[int, ...]:
        """An id per character."""
        return tuple(map(ord, written))

    def plain(self, written: str) -> str:
        """The text, as bytes of UTF-8 give it."""
        return self.decode(self.encode(written))

    def render_answer(self, message: Message) -> tuple[int, ...]:
        """The ids a model would have to sample to give `message` as its turn, end of turn included."""
        return (*_content(message).encode(), END)

    def parse(self, text: str, *, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedAnswer:
        """Reads `<tool_call>{...}</tool_call>`; what is no well-formed call to one of `tools` stays content."""
        names = {tool["function"]["name"] for tool in tools}
        calls: list[Mapping[str, Any]] = []
        malformed: list[str] = []

        def take(match: re.Match[str]) -> str:
            reason, call = _tool_call(match[1], names)
            if call is None:
                malformed.append(reason)
                return match[0]
            calls.append(call)
            return ""

        content = _CALL.sub(take, text)
        return ParsedAnswer((content.strip() if calls else content) or None, tuple(calls), tuple(malformed))

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 become replacement characters."""
        parts: list[bytes] = []
        for token in token_ids:
            if token in _SPECIAL:
                parts.append(b"" if skip_special else _SPECIAL[token].encode())
            else:
                parts.append(bytes((token,)))
        return b"".join(parts).decode(errors="replace")

    def read(self, token_ids: Sequence[int]) -> list[dict[str, str]]:
        """The turns of a rendered prompt, as {"role", "content"}; tools are a turn of the role "tools".

        The assistant's header that ends a prompt is left out.
        """
        turns: list[dict[str, str]] = []
        body: list[int] = []
        for token in token_ids:
            if token == START:
                body = []
            elif token == END:
                role, _, content = bytes(body).decode(errors="replace").partition("\n")
                turns.append({"role": role, "content": content})
            else:
                body.append(token)
        return turns


def _turn(role: str, content: str) -> list[int]:
    return [START, *role.encode(), *b"\n", *content.encode(), END]


def _content(message: Message) -> str:
    """The text of a message; tool calls follow the content, as a model would have written them."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        if odd := [part.get("type") for part in content if part.get("type") != "text"]:
            raise BackendError(f"A message has a part of type {odd[0]!r}, and this model reads text only")
        content = "".join(part["text"] for part in content)
    calls = [
        f'<tool_call>{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}</tool_call>'
        for call in message.get("tool_calls") or ()
    ]
    return "\n".join([content, *calls] if content else calls)


def _tool_call(text: str, names: set[str]) -> tuple[str, Mapping[str, Any] | None]:
    """Reads one call; (why not, None) when it is none."""
    try:
        call = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}", None
    if not isinstance(call, dict) or call.get("name") not in names or not isinstance(call.get("arguments"), dict):
        return "not a call to one of the tools with an object of arguments", None
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return "", {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
