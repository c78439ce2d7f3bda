"""A span for each LLM call of a rollout, from opentelemetry-instrumentation-openai, into spangrad's own tracer provider.

That instrumentor wraps methods of openai's resources for the whole process. It is let through only for calls made inside a
rollout's scope: for all others the method is the original, so a program that merely has spangrad installed keeps its
return types, its metrics and its headers. Training needs none of these spans; they add structure to what the gateway knows.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry.metrics import NoOpMeterProvider

from spangrad.capture import current_scope, tracer_provider
from spangrad_openai._replacement import Replacement, undo_around

_log = logging.getLogger("spangrad.openai")


class SpanPatch:
    """The instrumentor, switched on unless the program has done so itself or it does not work here."""

    def __init__(self) -> None:
        self.state = "not attached"
        self._instrumentor: Any = None
        self._replacements: list[Replacement] = []
        self._settings: tuple[type, Mapping[str, object]] | None = None

    def apply(self) -> None:
        """Switches it on. Never raises for what is wrong with the instrumentor: calls work and train without spans."""
        with warnings.catch_warnings():
            # What the instrumentor's modules warn of when imported is not the user's to mend, and must not stop them under -W error.
            warnings.simplefilter("ignore")
            self._apply()

    def _apply(self) -> None:
        try:
            from opentelemetry.instrumentation.openai import OpenAIInstrumentor  # noqa: PLC0415 - it may be missing
            from opentelemetry.instrumentation.openai.shared import chat_wrappers  # noqa: PLC0415
            from opentelemetry.instrumentation.openai.shared.config import Config  # noqa: PLC0415
        except ImportError as error:
            self._without(f"opentelemetry-instrumentation-openai cannot be imported: {error}")
            return
        # Asked of the class, for making an instance resets the settings of the one the program may have made.
        if getattr(OpenAIInstrumentor._instance, "is_instrumented_by_opentelemetry", False):  # noqa: SLF001
            self.state = "left to the program's own instrumentation of openai"
            return
        self._settings = (Config, {name: value for name, value in vars(Config).items() if not name.startswith("__")})
        before = {id(wrapper) for _, _, wrapper in _wrapped_methods()}
        # No traceparent in the agent's requests and no metrics in the program's own meters.
        self._instrumentor = OpenAIInstrumentor(enable_trace_context_propagation=False)
        try:
            self._instrumentor.instrument(tracer_provider=tracer_provider(), meter_provider=NoOpMeterProvider())
        except Exception as error:  # noqa: BLE001 - an instrumentor that does not fit this openai may raise anything
            self._gate(before)
            self.revert()
            self._without(f"opentelemetry-instrumentation-openai failed: {type(error).__name__}: {error}")
            return
        self._gate(before)
        if not self._replacements:
            self.revert()
            self._without("opentelemetry-instrumentation-openai hooked nothing into this openai")
            return
        self._replace_run_async(chat_wrappers)
        self.state = "recorded"

    def revert(self) -> None:
        """Switches it off if `apply` switched it on, and restores what its own uninstrumenting leaves behind."""
        if self._instrumentor is not None:
            undo_around(self._replacements, self._uninstrument)
        if self._settings is not None:
            config, values = self._settings
            for name, value in values.items():
                setattr(config, name, value)
        self._instrumentor = None
        self._replacements = []
        self._settings = None
        self.state = "not attached"

    def _uninstrument(self) -> None:
        if self._instrumentor is not None and self._instrumentor.is_instrumented_by_opentelemetry:
            self._instrumentor.uninstrument()

    def _gate(self, before: set[int]) -> None:
        """Puts a gate over each method wrapped just now: only calls inside a scope take the way through the wrapper."""
        for owner, name, wrapper in list(_wrapped_methods()):
            if id(wrapper) in before:
                continue
            original: Any = wrapper
            while isinstance(original, wrapt.FunctionWrapper) and id(original) not in before:
                original = original.__wrapped__
            inherited = getattr(original, "__qualname__", "") != f"{owner.__qualname__}.{name}"
            gate = wrapt.FunctionWrapper(original, _through(wrapper))
            setattr(owner, name, gate)
            self._replacements.append(Replacement(owner, name, original, gate, inherited=inherited))

    def _replace_run_async(self, chat_wrappers: ModuleType) -> None:
        """Keeps the instrumentor from running an event loop of its own in each synchronous call.

        It does so for one coroutine that never waits, and ending that loop unsets the thread's current one, which programs
        that call `asyncio.get_event_loop()` notice. Seen in 0.62.4; to be removed when upstream no longer does it.
        """
        if "run_async" in vars(chat_wrappers):
            self._replacements.append(Replacement.make(chat_wrappers, "run_async", _run_at_once))

    def _without(self, why: str) -> None:
        self.state = f"not recorded: {why}"
        _log.warning("LLM calls get no spans of their own; training does not need them. %s", why)


def _through(wrapper: Any) -> Callable[..., object]:
    def gate(
        original: Callable[..., object], instance: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if current_scope() is None:
            return original(*args, **kwargs)
        return wrapper.__get__(instance, type(instance))(*args, **kwargs)

    return gate


def _run_at_once(coroutine: Coroutine[object, None, object]) -> None:
    """Runs a coroutine that never waits; one that does after all is dropped where it would wait."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()


def _wrapped_methods() -> Iterator[tuple[type, str, Any]]:
    """Class, name and wrapper of each method of openai's resources that an instrumentor has wrapped."""
    seen: set[type] = set()
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("openai.resources"):
            continue
        for owner in list(vars(module).values()):
            if not isinstance(owner, type) or owner in seen or not owner.__module__.startswith("openai."):
                continue
            seen.add(owner)
            for name, value in list(vars(owner).items()):
                if isinstance(value, wrapt.FunctionWrapper):
                    yield owner, name, value
