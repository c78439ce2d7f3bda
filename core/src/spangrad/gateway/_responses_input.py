"""The items of the Responses API as chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spangrad.backend import Message
from spangrad.gateway._engine import EngineError

_ROLES: Final = frozenset({"system", "developer", "user", "assistant"})


def messages_from_items(items: Any, param: str = "input") -> list[Message]:
    """The chat messages of a request's input or of a response's output.

    What a model says in one turn is one chat message: the function calls that follow an assistant's message, or each other, are
    its tool calls. A reasoning item's text becomes the `reasoning_content` of the turn it belongs to; one without text carries
    nothing that could be shown to this model, and leaves no trace.

    Args:
        items: a text, which is the user's, or items.
        param: where they stand in the request, for error messages.

    Raises:
        EngineError: 400, an item or a part of one cannot be told in chat messages.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, Sequence):
        raise _bad(param, "is neither text nor a list of items")
    thread = _Thread()
    for number, item in enumerate(items):
        thread.add(item, f"{param}.{number}")
    return thread.messages


class _Thread:
    """Messages while they are put together."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: dict[str, Any] | None = None
        """The assistant's message that the next function call belongs to."""
        self._reasoning = ""

    def add(self, item: Any, where: str) -> None:
        """Takes in the next item."""
        if not isinstance(item, Mapping):
            raise _bad(where, "is no object")
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "function_call_output":
            self._add_output(item, where)
        elif kind == "reasoning":
            self._reasoning = _reasoning_text(item)
        elif kind == "item_reference":
            raise _bad(where, "refers to an item by its id", "Send the item itself, or previous_response_id")
        else:
            raise _bad(
                where,
                f"has the type {kind!r}, which belongs to a tool that does not run here",
                "Known types: message, function_call, function_call_output, reasoning",
            )

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise _bad(where, f"has the role {role!r}", f"Known roles: {', '.join(sorted(_ROLES))}")
        message = {"role": role, "content": _content(item.get("content"), f"{where}.content")}
        self._turn = None
        if role == "assistant":
            self._open(message)
        else:
            self._reasoning = ""
            self.messages.append(message)

    def _add_call(self, item: Mapping[str, Any], where: str) -> None:
        function = {name: _text(item, name, where) for name in ("name", "arguments")}
        call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
        if self._turn is None:
            self._open({"role": "assistant", "content": None})
        if self._turn is not None:
            self._turn.setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _text(item, "call_id", where)
        content = _content(item.get("output"), f"{where}.output")
        self._turn, self._reasoning = None, ""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _open(self, message: dict[str, Any]) -> None:
        """Begins an assistant's turn."""
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
            self._reasoning = ""
        self._turn = message
        self.messages.append(message)


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """The content of a message: the text, or the parts if there are several or other ones."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _bad(where, "is neither text nor a list of parts")
    parts = [_part(part, f"{where}.{number}") for number, part in enumerate(content)]
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Any, where: str) -> dict[str, Any]:
    """A part of a message, as chat completions have it. Whether it can be shown to the model is the engine's business."""
    kind = str(part.get("type")) if isinstance(part, Mapping) else ""
    if kind in {"input_text", "output_text", "text"}:
        return {"type": "text", "text": _text(part, "text", where)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": _text(part, "refusal", where)}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"]} | ({"detail": part["detail"]} if part.get("detail") else {})
        return {"type": "image_url", "image_url": image}
    if kind == "input_file" and not part.get("file_url"):
        return {
            "type": "file",
            "file": {name: part[name] for name in ("file_data", "filename", "file_id") if name in part},
        }
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise _bad(
        where, f"is a part of type {kind!r} that cannot be given to the model", "Send text, or an image by its URL"
    )


def _reasoning_text(item: Mapping[str, Any]) -> str:
    """What a reasoning item says in the open: its content, else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        said = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
        if text := "\n".join(words for words in said if isinstance(words, str)):
            return text
    return ""


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _bad(where, f"needs {name}, a text")
    return value


def _bad(where: str, what: str, cure: str = "") -> EngineError:
    return EngineError(f"The request is not valid: {where} {what}", cure=cure, status=400, param=where)
