"""What opentelemetry-instrumentation-openai does to a process that it must not do to an agent's.

Seen from 0.53 to 0.62.4; each to be removed when upstream no longer does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any, Final

from spangrad_openai._call import current_call
from spangrad_openai._replacement import Replacement

_PACKAGE: Final = "opentelemetry.instrumentation.openai"
_KEPT: Final = 256
"""Responses remembered at most, for those that are fetched again while they run in the background."""


def work_around() -> list[Replacement]:
    """Replaces what it does; undo the replacements to have it back."""
    made: list[Replacement] = []
    for part in ("chat", "completion", "embeddings"):
        module = importlib.import_module(f"{_PACKAGE}.shared.{part}_wrappers")
        made += _replaced(module, "propagate_trace_context", _without_ours)
        made += _replaced(module, "run_async", lambda _: _run_at_once)
    responses = importlib.import_module(f"{_PACKAGE}.v1.responses_wrappers")
    return made + _replaced(responses, "responses", _Recent)


def _replaced(module: ModuleType, name: str, make: Callable[[Any], object]) -> list[Replacement]:
    """Replaces the attribute by what `make` gives for it, where there is one."""
    return [Replacement.make(module, name, make(vars(module)[name]))] if name in vars(module) else []


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


class _Recent(dict[Any, Any]):
    """It keeps every answer of the Responses API for as long as the process runs."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > _KEPT:
            self.pop(next(iter(self)), None)
