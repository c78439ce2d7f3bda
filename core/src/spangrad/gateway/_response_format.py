"""The form an answer shall have (`response_format`), told to the model in words.

Nothing forces the answer into that form. Sampling under a grammar draws from the model's distribution with most of it masked out;
its log-probabilities mean nothing to a trainer that does not have the mask, and a policy that never errs in form never learns it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spangrad.backend import Message
from spangrad.gateway._engine import EngineError


def told_messages(messages: Sequence[Message], response_format: Any) -> Sequence[Message]:
    """A conversation whose system message says what form the answer shall have.

    The instruction follows the text of the first message, if that is a system (or developer) message, after an empty line; else
    it is a system message of its own in front.

    Args:
        messages: the conversation; not changed.
        response_format: as chat completions have it: {"type": "text"}, {"type": "json_object"}, or
            {"type": "json_schema", "json_schema": {"name", "schema", ...}}.

    Raises:
        EngineError: 400, the format is none of these.
    """
    instruction = format_instruction(response_format)
    if not instruction:
        return messages
    first = messages[0]
    if first["role"] not in {"system", "developer"}:
        return [{"role": "system", "content": instruction}, *messages]
    content = first.get("content") or ""
    if isinstance(content, str):
        return [{**first, "content": f"{content}\n\n{instruction}" if content else instruction}, *messages[1:]]
    part = {"type": "text", "text": f"\n\n{instruction}"}
    return [{**first, "content": [*content, part]}, *messages[1:]]


def format_instruction(response_format: Any) -> str:
    """What the model is told of a response format; empty for plain text.

    Raises:
        EngineError: 400, the format is unknown, or a schema is missing or no object.
    """
    if response_format is None:
        return ""
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return "Answer with one JSON object and nothing else."
    if kind == "json_schema":
        described = response_format.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if isinstance(described, Mapping) and isinstance(schema, Mapping):
            purpose = f" ({described['description']})" if described.get("description") else ""
            shape = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
            return f"Answer with JSON and nothing else. It must match this JSON Schema{purpose}:\n{shape}"
    what = "response_format of type json_schema needs json_schema.schema, an object"
    raise EngineError(
        what if kind == "json_schema" else f"The response format {response_format!r} is not known",
        cure="Use the type text, json_object or json_schema",
        status=400,
        param="response_format",
    )
