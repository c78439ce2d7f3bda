"""A span for each LLM call of a rollout, from opentelemetry-instrumentation-openai, into spangrad's own tracer provider.

That instrumentor wraps methods of openai's resources for the whole process. It is let through only for calls made inside a
rollout's scope: for all others the method is the original, so a program that merely has spangrad installed keeps its
return types, its metrics and its headers. And what lies below the wrapper is called as if it were not there: with the program's
own span as the current one. Training needs none of these spans; they add structure to what the gateway knows.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import wrapt
from opentelemetry.metrics import NoOpMeterProvider

from spangrad.capture import current_scope
from spangrad.plugins import Replacements
from spangrad_openai._call import as_async_call, as_call, as_the_program
from spangrad_openai._call_tracer import CallTracerProvider
from spangrad_openai._workarounds import work_around

_log = logging.getLogger("spangrad.openai")


class SpanPatch:
    """The instrumentor, switched on unless the program has done so itself or it does not work here."""

    def __init__(self) -> None:
        self.state = "not attached"
        self._instrumentor: Any = None
        self._replacements = Replacements()
        self._active = False

    def apply(self) -> None:
        """Switches it on. Never raises for what is wrong with the instrumentor: calls work and train without spans."""
        with warnings.catch_warnings():
            # What the instrumentor's modules warn of when imported is not the user's to mend, and must not stop them under -W error.
            warnings.simplefilter("ignore")
            self._apply()

    def _apply(self) -> None:
        try:
            from opentelemetry.instrumentation.openai import OpenAIInstrumentor  # noqa: PLC0415 - it may be missing
            from opentelemetry.instrumentation.openai.v1 import OpenAIV1Instrumentor  # noqa: PLC0415
        except ImportError as error:
            self._without(f"opentelemetry-instrumentation-openai cannot be imported: {error}")
            return
        # Asked of the class, for making an instance resets the settings of the one the program may have made.
        if getattr(OpenAIInstrumentor._instance, "is_instrumented_by_opentelemetry", False):  # noqa: SLF001
            self.state = "left to the program's own instrumentation of openai"
            return
        before = {id(wrapper) for _, _, wrapper in _wrapped_methods()}
        # There is one instance of a class, and that is the program's to switch on.
        self._instrumentor = type("SpangradInstrumentor", (OpenAIV1Instrumentor,), {"_instance": None})()
        try:
            # No metrics in the program's own meters.
            self._instrumentor.instrument(tracer_provider=CallTracerProvider(), meter_provider=NoOpMeterProvider())
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
        work_around(self._replacements)
        self._active = True
        self.state = "recorded"

    def revert(self) -> None:
        """Switches it off if `apply` switched it on, and restores what its own uninstrumenting leaves behind."""
        self._active = False
        if self._instrumentor is not None:
            self._replacements.undo_around(self._uninstrument)
        self._instrumentor = None
        self.state = "not attached"

    def _uninstrument(self) -> None:
        if self._instrumentor is not None and self._instrumentor.is_instrumented_by_opentelemetry:
            self._instrumentor.uninstrument()

    def _gate(self, before: set[int]) -> None:
        """Puts a gate over each method wrapped just now: only calls inside a scope take the way through the wrapper."""
        for owner, name, wrapper in list(_wrapped_methods()):
            if id(wrapper) in before:
                continue
            innermost = wrapper
            while isinstance(innermost.__wrapped__, wrapt.FunctionWrapper) and id(innermost.__wrapped__) not in before:
                innermost = innermost.__wrapped__
            original = innermost.__wrapped__
            innermost.__wrapped__ = wrapt.FunctionWrapper(original, _below)
            inherited = getattr(original, "__qualname__", "") != f"{owner.__qualname__}.{name}"
            gate = wrapt.FunctionWrapper(original, self._through(wrapper, original))
            setattr(owner, name, gate)
            self._replacements.note(owner, name, original, inherited=inherited)

    def _through(self, wrapper: Any, original: Any) -> Callable[..., object]:
        call = as_async_call if inspect.iscoroutinefunction(inspect.unwrap(original)) else as_call

        def gate(
            original: Callable[..., object], instance: object, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> object:
            if not self._active or current_scope() is None:
                return original(*args, **kwargs)
            return call(wrapper.__get__(instance, type(instance)), *args, **kwargs)

        return gate

    def _without(self, why: str) -> None:
        self.state = f"not recorded: {why}"
        _log.warning("LLM calls get no spans of their own; training does not need them. %s", why)


def _below(original: Callable[..., object], _: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return as_the_program(original, *args, **kwargs)


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
