"""What opentelemetry-instrumentation-openai does to a process that it must not do to an agent's.

Seen from 0.61 to 0.62.4; each to be removed when upstream no longer does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any, Final

from spangrad.plugins import Replacements
from spangrad_openai._call import current_call

_PACKAGE: Final = "opentelemetry.instrumentation.openai"
_KEPT: Final = 256
"""Responses remembered at most, for those that are fetched again while they run in the background."""


def work_around(replacements: Replacements) -> None:
    """Replaces what it does; undo the replacements to have it back."""
    for part in ("chat", "completion", "embeddings"):
        module = importlib.import_module(f"{_PACKAGE}.shared.{part}_wrappers")
        _replace(replacements, module, "propagate_trace_context", _without_ours)
        _replace(replacements, module, "run_async", lambda _: _run_at_once)
        _replace(replacements, module, "model_as_dict", _quietly)
    responses = importlib.import_module(f"{_PACKAGE}.v1.responses_wrappers")
    _replace(replacements, responses, "responses", _Recent)
    _replace(replacements, responses, "model_as_dict", _quietly)
    _replace(replacements, responses, "_sanitize_sentinel_values", _as_plain_data)


def _replace(replacements: Replacements, module: ModuleType, name: str, make: Callable[[Any], object]) -> None:
    """Replaces the attribute by what `make` gives for it, where there is one."""
    if name in vars(module):
        replacements.make(module, name, make(vars(module)[name]))


def _without_ours(original: Callable[..., None]) -> Callable[..., None]:
    """It names its span to the server in a `traceparent` header, but ours are nobody else's to know."""

    def propagate_trace_context(span: object, *args: object, **kwargs: object) -> None:
        call = current_call()
        if call is None or all(span is not own for own in call.spans):
            original(span, *args, **kwargs)

    return propagate_trace_context


def _run_at_once(coroutine: Coroutine[object, None, object]) -> None:
    """It runs an event loop of its own in each synchronous call, for one coroutine that never waits.

    Ending that loop unsets the thread's current one, which programs that call `asyncio.get_event_loop()` notice. A coroutine
    that does wait after all is dropped there.
    """
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()


def _quietly(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """It dumps parsed answers, of whose types openai's models do not know, and pydantic warns the program of that."""

    def model_as_dict(model: Any) -> Any:
        dump = getattr(model, "model_dump", None)
        return original(model) if dump is None else dump(warnings=False)

    return model_as_dict


def _as_plain_data(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """It takes the Responses API's `reasoning` for a dict, `kwargs.get("reasoning", {}).get("summary")` in v1/responses_wrappers.py,
    and gives up the span where that is openai's own object, as the Agents SDK passes it with its default model.

    The arguments it is given here are its own copy, never those that openai is called with.
    """

    def _sanitize_sentinel_values(kwargs: Any) -> Any:
        arguments = original(kwargs)
        dump = getattr(arguments.get("reasoning"), "model_dump", None)
        return arguments if dump is None else {**arguments, "reasoning": dump(warnings=False, exclude_unset=True)}

    return _sanitize_sentinel_values


class _Recent(dict[Any, Any]):
    """It keeps every answer of the Responses API for as long as the process runs."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > _KEPT:
            self.pop(next(iter(self)), None)
