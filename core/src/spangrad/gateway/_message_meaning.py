"""When two chat messages are the same, however their clients wrote them down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from spangrad.backend import Message

_DIGEST_BYTES: Final = 16


def message_digest(message: Message) -> bytes:
    """Equal for messages that show a model the same.

    Compared are the role (a developer's message is a system message), the text (absent, null, empty and a list of text parts
    are texts too), tool calls with their ids, names and arguments (as JSON values: spacing and the order of members do not
    count), and which call a tool's message answers. Other members, such as `refusal`, show the model nothing.
    """
    role = message.get("role")
    parts: list[Any] = ["system" if role == "developer" else role, _text(message.get("content"))]
    calls = message.get("tool_calls") or ()
    parts.append([_call(call) for call in calls] if isinstance(calls, Sequence) else calls)
    if role == "tool":
        parts += [message.get("tool_call_id"), message.get("name")]
    return digest(parts)


def digest(value: Any, *before: bytes) -> bytes:
    """A short fingerprint of a JSON value and of what came before it; the order of members does not count."""
    hashed = blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=_DIGEST_BYTES)
    for part in before:
        hashed.update(part)
    return hashed.digest()


def canonical_arguments(arguments: Any) -> Any:
    """A tool call's arguments, equal where their JSON values are; as they are where they are no JSON text."""
    if not isinstance(arguments, str):
        return [arguments]
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _text(content: Any) -> Any:
    """A message's text, as one string if it is nothing but text."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content or ""
    parts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    return "".join(texts) if len(texts) == len(content) else list(content)


def _call(call: Any) -> Any:
    """What a tool call comes to; itself where it has not the shape of one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return [call.get("id"), function.get("name"), canonical_arguments(function.get("arguments"))]
