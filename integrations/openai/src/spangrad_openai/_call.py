"""One call of a client's method, while it is under way: its spans, the answer it got, and whose span it was made in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutine
from typing import Any, Final

from opentelemetry import context, trace

from spangrad import semconv

_LLM_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_NOTHING: Final = object()

_log = logging.getLogger("spangrad.openai")


@dataclass(slots=True)
class Call:
    """What is known of the call."""

    outer: trace.Span = field(default_factory=trace.get_current_span)
    """The span that was the current one where the program made the call."""
    spans: list[trace.Span] = field(default_factory=list)
    """The call's spans begun so far."""
    answer: dict[str, str] = field(default_factory=dict)
    """Attributes that name the HTTP attempt whose answer the agent gets; empty until it is there."""
    result: object = _NOTHING
    """What openai's own method gave, before the instrumentor looked at it; nothing until it did, and where it raised."""


_call: ContextVar[Call | None] = ContextVar("spangrad_openai_call", default=None)


def current_call() -> Call | None:
    """The call the running code is in the middle of."""
    return _call.get()


def as_call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Calls the function as one `Call`. Where it fails of itself after openai answered, the program gets openai's answer."""
    with _call_under_way() as call:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # an instrumentor may raise anything, and what the program asked for is there
            if call.result is _NOTHING:
                raise
            return _in_spite_of(error, call)


async def as_async_call(function: Callable[..., Awaitable[object]], *args: object, **kwargs: object) -> object:
    """Likewise calls the coroutine's function, when this is awaited and not before."""
    with _call_under_way() as call:
        try:
            return await function(*args, **kwargs)
        except Exception as error:  # as above
            if call.result is _NOTHING:
                raise
            return _in_spite_of(error, call)


def as_the_program(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Calls the function, which may be a coroutine's, with the program's own span as the current one.

    The spans of a `Call` are not the program's to see: what else it uses to trace itself goes by the current span.
    """
    call = _call.get()
    if call is None:
        return function(*args, **kwargs)

    def place() -> AbstractContextManager[None]:
        return _current_span(call.outer)

    with place():
        result = function(*args, **kwargs)
    if iscoroutine(result):
        return _awaited_in(place, result, call)
    call.result = result
    return result


def note_answer(attributes: dict[str, str]) -> None:
    """Writes onto the span of the call under way, begun already or not, which HTTP attempt was answered to the agent."""
    call = _call.get()
    if call is not None:
        call.answer = attributes
    for span in (*(call.spans if call is not None else ()), trace.get_current_span()):
        if _is_llm_span(span):
            span.set_attributes(attributes)


def _is_llm_span(span: trace.Span) -> bool:
    """Whether the span stands for one LLM call; an agent's span would stand for many and cannot name one of them."""
    attributes = getattr(span, "attributes", None)  # only spans of the SDK let theirs be read
    if not span.is_recording() or attributes is None or getattr(span, "kind", None) is not trace.SpanKind.CLIENT:
        return False
    return attributes.get(semconv.OPERATION_NAME) in _LLM_OPERATIONS or "llm.request.type" in attributes


async def _awaited_in(
    place: Callable[[], AbstractContextManager[None]], coroutine: Coroutine[Any, Any, object], call: Call
) -> object:
    with place():
        call.result = await coroutine
        return call.result


def _in_spite_of(error: Exception, call: Call) -> object:
    """What openai gave; the error came after that."""
    _log.warning("The span of a call lacks what its answer says, for the instrumentor of openai failed: %r", error)
    for span in call.spans:
        if span.is_recording():
            span.end()
    return call.result


@contextmanager
def _call_under_way() -> Iterator[Call]:
    call = Call()
    token = _call.set(call)
    try:
        yield call
    finally:
        # A coroutine that the garbage collector closes is in another context, which has nothing to take back.
        with suppress(ValueError):
            _call.reset(token)


@contextmanager
def _current_span(span: trace.Span) -> Iterator[None]:
    inside = trace.set_span_in_context(span)
    token = context.attach(inside)
    try:
        yield
    finally:
        if context.get_current() is inside:  # as above
            context.detach(token)
