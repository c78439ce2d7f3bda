"""The body of a request of the Responses API, and the chat completions request that asks the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spangrad.backend import Message
from spangrad.gateway._engine import EngineError
from spangrad.gateway._request import complaint

_GO_ON: Final = (
    "Send the conversation as `input`, or go on from an earlier response of the rollout with previous_response_id"
)
_REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "background": ((None, False), "Wait for the answer, or stream it"),
    "context_management": ((None, []), "Shorten the conversation in the agent"),
    "conversation": ((None,), _GO_ON),
    "moderation": ((None,), "Leave the field out"),
    "n": ((None, 1), "A response is one answer; chat completions can have several"),
    "prompt": ((None,), "Prompts are kept at OpenAI; send `instructions` and `input`"),
}
"""Fields that change what is answered: the values that change nothing, and what to do instead."""
_TRANSLATED: Final = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "include",
        "max_output_tokens",
        "top_logprobs",
        "reasoning",
    }
)
_WITHOUT_EFFECT: Final = frozenset(
    {
        "access_programs",
        "background_options",
        "max_tool_calls",  # limits built-in tools
        "metadata",
        "previous_response_id",
        "prompt_cache_options",
        "store",
        "stream_options",  # only `include_obfuscation`
        "truncation",  # a conversation that is too long is refused
    }
)


class _Format(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str


class _Text(BaseModel):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(BaseModel):
    effort: str | None = None


class ResponsesBody(BaseModel):
    """The fields that are translated. Others are those of chat completions under the same name, and read as such."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: Any = None
    """A text or a list of items."""
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    text: _Text | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    reasoning: _Reasoning | None = None

    @property
    def wants_logprobs(self) -> bool:
        """The answer's text comes with log-probabilities."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)


def read_responses(body: Mapping[str, Any]) -> ResponsesBody:
    """Validates a request.

    Raises:
        EngineError: 400, naming every field that is wrong, or the first that cannot be honoured.
    """
    for name, (neutral, cure) in _REFUSED.items():
        if name in body and body[name] not in neutral:
            raise EngineError(
                f"{name} cannot be honoured here", cure=cure, status=400, code="unsupported_parameter", param=name
            )
    try:
        return ResponsesBody.model_validate(body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise EngineError(complaint(error), status=400, param=where) from error


def chat_request(asked: ResponsesBody, body: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """The chat completions request that asks the same.

    Args:
        asked: the request.
        body: the same as it was sent.
        messages: the whole conversation but for `instructions`.

    Raises:
        EngineError: 400, a tool or choice of tools that only OpenAI's servers have.
    """
    own = _TRANSLATED | _WITHOUT_EFFECT | _REFUSED.keys()
    kept = {name: value for name, value in body.items() if name not in own}
    told = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    if not told and not messages:
        raise EngineError("The request is not valid: input: there is nothing to answer", status=400, param="input")
    request = kept | {"messages": [*told, *messages]}
    if asked.tools:
        request["tools"] = [_tool(tool, f"tools.{number}") for number, tool in enumerate(asked.tools)]
    if asked.tool_choice is not None:
        request["tool_choice"] = _tool_choice(asked.tool_choice)
    if asked.max_output_tokens is not None:
        request["max_completion_tokens"] = asked.max_output_tokens
    if asked.wants_logprobs:
        request["logprobs"] = True
    if asked.top_logprobs:
        request["top_logprobs"] = asked.top_logprobs
    if asked.text is not None and asked.text.format is not None:
        request["response_format"] = _response_format(asked.text.format)
    if asked.text is not None and asked.text.verbosity is not None:
        request["verbosity"] = asked.text.verbosity
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        request["reasoning_effort"] = asked.reasoning.effort
    return request


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise EngineError(
            f"The tool {kind!r} is built into OpenAI's servers and does not run here",
            cure="Give the agent a function that does the same",
            status=400,
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        raise EngineError(
            f"The tool choice {choice!r} cannot be honoured here",
            cure='Use "auto", "none", "required" or the name of a function',
            status=400,
            code="unsupported_parameter",
            param="tool_choice",
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _response_format(form: _Format) -> dict[str, Any]:
    if form.type == "json_schema":
        return {"type": "json_schema", "json_schema": dict(form.model_extra or {})}
    return form.model_dump()
