"""Tool calls as text: `<tool_call>{"name": "calc", "arguments": {"expression": "1+2"}}</tool_call>`.

What is not exactly such a call to an offered tool stays text, with the reason. The JSON is read with a JSON decoder rather
than up to the closing tag, so a tag inside a string argument ends nothing.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from spangrad.backend import ParsedAnswer

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_SPACE = re.compile(r"[ \t\r\n]*")


class _MalformedCallError(Exception):
    """Text that opens like a tool call and is none; its message says why."""


def parse_tool_calls(text: str, *, tools: Sequence[Mapping[str, Any]]) -> ParsedAnswer:
    """Reads the tool calls out of sampled text.

    Args:
        text: the sampled text, end-of-turn token excluded.
        tools: the tools offered, as in the OpenAI API; a call to any other stays text.

    Returns:
        The calls in order, each with a new random id and its `arguments` exactly as written; the text around them as the
        content (None when nothing but white space surrounds a call); a reason for each opening tag that led to no call.
    """
    names = {str(tool["function"]["name"]) for tool in tools}
    calls: list[Mapping[str, Any]] = []
    malformed: list[str] = []
    kept: list[str] = []
    start = 0
    """Where the text not yet kept begins."""
    at = text.find(OPEN)
    while at >= 0:
        try:
            name, arguments, end = _read_call(text, at + len(OPEN), names)
        except _MalformedCallError as error:
            malformed.append(str(error))
            at = text.find(OPEN, at + len(OPEN))
            continue
        kept.append(text[start:at])
        calls.append(
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
        start = end
        at = text.find(OPEN, end)
    kept.append(text[start:])
    content = "".join(kept)
    silent = bool(calls) and not content.strip()
    return ParsedAnswer(None if silent else content, tuple(calls), tuple(malformed))


def _read_call(text: str, at: int, names: Collection[str]) -> tuple[str, str, int]:
    """Reads one call whose JSON begins at `at` or after white space.

    Returns:
        Tool name, arguments as written, and where the text after the closing tag begins.
    """
    members, at = _read_object(text, at)
    at = _skip_space(text, at)
    if not text.startswith(CLOSE, at):
        raise _MalformedCallError(f"the call is not closed by {CLOSE}")
    if unknown := members.keys() - {"name", "arguments"}:
        raise _MalformedCallError(f"the call has unknown members: {', '.join(sorted(unknown))}")
    if "name" not in members or "arguments" not in members:
        raise _MalformedCallError("the call needs a name and arguments")
    name = json.loads(members["name"])
    if not isinstance(name, str) or name not in names:
        offered = ", ".join(sorted(names)) or "none"
        raise _MalformedCallError(f"no tool {members['name']} was offered (offered: {offered})")
    if not members["arguments"].startswith("{"):
        raise _MalformedCallError("the arguments are not a JSON object")
    return name, members["arguments"], at + len(CLOSE)


def _read_object(text: str, at: int) -> tuple[dict[str, str], int]:
    """Reads a JSON object into its members' values as written, and where the text behind it begins."""
    members: dict[str, str] = {}
    at = _expect(text, _skip_space(text, at), "{")
    at = _skip_space(text, at)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        key_end = _read_value(text, at)
        key = json.loads(text[at:key_end])
        if not isinstance(key, str) or key in members:
            raise _MalformedCallError("the call is not a JSON object with distinct names")
        at = _expect(text, _skip_space(text, key_end), ":")
        at = _skip_space(text, at)
        value_end = _read_value(text, at)
        members[key] = text[at:value_end]
        at = _skip_space(text, value_end)
        if text.startswith("}", at):
            return members, at + 1
        at = _skip_space(text, _expect(text, at, ","))


def _reject_constant(name: str) -> NoReturn:
    """Refuses NaN and the infinities, which Python reads and JSON does not know."""
    raise _MalformedCallError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _read_value(text: str, at: int) -> int:
    """Where the JSON value that begins at `at` ends."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except RecursionError as error:
        raise _MalformedCallError("the JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise _MalformedCallError(f"the JSON is broken: {error.msg} at character {error.pos}") from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise _MalformedCallError("the JSON has a number of too many digits") from error


def _skip_space(text: str, at: int) -> int:
    """Where the first character after JSON white space is."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _expect(text: str, at: int, character: str) -> int:
    """Steps over one character that must be there."""
    if not text.startswith(character, at):
        raise _MalformedCallError(f"the JSON is broken: {character!r} expected at character {at}")
    return at + 1
