"""The body of a chat request: what is understood, what is harmless, and what must not be ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from spangrad.backend import SamplingParams
from spangrad.gateway._access import SamplingOverride
from spangrad.gateway._branches import Branches
from spangrad.gateway._engine import EngineError, EngineRequest

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None,),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "structured_outputs": (None,),
    "web_search_options": (None,),
}
"""Fields that change what is sampled, with the values that change nothing."""


class _Function(BaseModel):
    """A tool's function; its parameters are the model's business."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: _Function


class _Named(BaseModel):
    name: str


class _NamedChoice(BaseModel):
    type: Literal["function"]
    function: _Named


class _Message(BaseModel):
    """A chat message; whether its content can be shown to the model is the engine's business."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class _StreamOptions(BaseModel):
    include_usage: bool = False


class ChatBody(BaseModel):
    """The fields of a chat request the gateway reads. Others are recorded and left to the engine."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _NamedChoice | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int | None = Field(default=None, ge=1, le=128)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    @property
    def include_usage(self) -> bool:
        """A stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


def read_json(data: bytes) -> dict[str, Any]:
    """Parses a request's body.

    Raises:
        EngineError: 400, it is no JSON object.
    """
    try:
        body = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise EngineError(f"The request's body is not JSON: {error}", status=400) from error
    if not isinstance(body, dict):
        raise EngineError("The request's body is not a JSON object", status=400)
    return body


def read_chat(body: Mapping[str, Any]) -> ChatBody:
    """Validates a chat request.

    Raises:
        EngineError: 400, naming every field that is wrong.
    """
    try:
        return ChatBody.model_validate(body)
    except ValidationError as error:
        raise EngineError(complaint(error), status=400, param=_where(error.errors()[0])) from error


def sampling_params(chat: ChatBody, override: SamplingOverride, index: int) -> tuple[SamplingParams, bool]:
    """The settings to sample with, and whether anybody set `max_tokens`.

    Args:
        chat: what the agent asks for.
        override: what its rollout is held to.
        index: of the call in its rollout, from 0; with a rollout's seed every call gets its own.
    """
    limits = (chat.max_completion_tokens or chat.max_tokens, override.max_tokens)
    limit = min((tokens for tokens in limits if tokens is not None), default=None)
    params = SamplingParams(
        temperature=_first(override.temperature, chat.temperature, 1.0),
        top_p=_first(override.top_p, chat.top_p, 1.0),
        top_k=int(max(0, _first(override.top_k, chat.top_k, 0))),
        max_tokens=SamplingParams().max_tokens if limit is None else limit,
        stop=chat.stops,
        seed=chat.seed if override.seed is None else call_seed(override.seed, index),
    )
    return params, limit is not None


def call_seed(seed: int, index: int) -> int:
    """The seed of a rollout's call: distinct for neighbouring calls and for neighbouring seeds (SplitMix64's finaliser).

    Args:
        seed: of the rollout.
        index: of the call in the rollout, from 0.

    Returns:
        A number below 2**31, so that seed + choice fits every sampler.
    """
    mask = (1 << 64) - 1
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) & 0x7FFFFFFF


def engine_request(
    chat: ChatBody,
    body: Mapping[str, Any],
    params: SamplingParams,
    *,
    limited: bool,
    call_id: str,
    branches: Branches | None,
) -> EngineRequest:
    """What the engine gets to see."""
    return EngineRequest(
        model=chat.model,
        messages=body["messages"],
        tools=body.get("tools") or (),
        tool_choice=body.get("tool_choice"),
        params=params,
        limited=limited,
        choices=chat.n or 1,
        logprobs=bool(chat.logprobs),
        top_logprobs=chat.top_logprobs or 0,
        stream=bool(chat.stream),
        body=body,
        call_id=call_id,
        branches=branches,
    )


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """For engines that only know the fields of `ChatBody`.

    Raises:
        EngineError: 400, a field would change the answer and cannot be honoured.
    """
    for name, neutral in _NEUTRAL.items():
        if name in body and body[name] not in neutral:
            raise EngineError(
                f"The model behind this endpoint cannot honour {name}={body[name]!r}",
                cure="Leave the field out",
                status=400,
                code="unsupported_parameter",
                param=name,
            )


def _first(*values: float | None) -> float:
    """The first value that is set."""
    return next(value for value in values if value is not None)


def _where(problem: Any) -> str:
    """The path of a field at fault, such as messages.0.role."""
    return ".".join(str(part) for part in problem["loc"])


def complaint(error: ValidationError) -> str:
    """All problems in one sentence."""
    problems = (f"{_where(p) or 'request'}: {p['msg'].removeprefix('Value error, ')}" for p in error.errors())
    return "The request is not valid: " + "; ".join(problems)
