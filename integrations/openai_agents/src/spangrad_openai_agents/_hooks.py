"""Everything hooked into the Agents SDK, attached once and counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from agents.models import openai_provider
from agents.tool_context import ToolContext
from agents.tracing.processors import BatchTraceProcessor
from agents.tracing.spans import NoOpSpan, SpanImpl

from spangrad.capture import add_probe
from spangrad.errors import PluginError
from spangrad.plugins import Replacements, SharedHooks
from spangrad_openai_agents._http_clients import HTTPClients
from spangrad_openai_agents._shape import installed
from spangrad_openai_agents._vendor_export import VENDOR_EXPORT
from spangrad_openai_agents._work import WORK, record

_MARK: Final = "__spangrad_openai_agents__"
"""Set on each of our functions, so that no second copy of this package hooks in on top."""


class _Hooks:
    """Hooks in the SDK's spans, its tools' contexts, its exporter and its HTTP client, and the probe."""

    def __init__(self) -> None:
        self._active = False
        self._replacements = Replacements()
        self._http_clients = HTTPClients()
        self._remove_probe: Callable[[], None] = lambda: None

    def apply(self) -> None:
        """Hooks in.

        Raises:
            PluginError: another copy of this package got there first.
        """
        for owner, name, wrap in self._wanted():
            # What lies under somebody else's wrapper since the last time is still ours and only has to wake up.
            if (owner, name) not in self._replacements:
                if hasattr(getattr(owner, name), _MARK):
                    raise PluginError(
                        f"{owner.__name__}.{name} is hooked already, by another copy of spangrad-openai-agents",
                        cure="Install it only once",
                    )
                self._replacements.make(owner, name, wrap(vars(owner)[name]))
        self._remove_probe = add_probe(WORK.site)
        self._active = True

    def revert(self) -> None:
        """Takes the hooks out; those that somebody wrapped in the meantime stay where they are and do nothing."""
        self._active = False
        self._remove_probe()
        self._replacements.undo()

    def describe(self) -> Mapping[str, str]:
        """See `OpenAIAgentsIntegration.describe`."""
        return {
            "openai-agents": installed(),
            "agents": "hooked" if self._active else "not attached",
            "export to the vendor": VENDOR_EXPORT.state if self._active else "as the program has it",
        }

    def _wanted(self) -> list[tuple[type | ModuleType, str, Callable[[Any], object]]]:
        return [
            (SpanImpl, "start", self._start),
            (SpanImpl, "finish", self._finish),
            (NoOpSpan, "start", self._start),
            (NoOpSpan, "finish", self._finish),
            (NoOpSpan, "set_error", self._set_error),
            (ToolContext, "from_agent_context", self._from_agent_context),
            (BatchTraceProcessor, "on_trace_start", self._on_trace_start),
            (BatchTraceProcessor, "on_span_end", self._on_span_end),
            (openai_provider, "shared_http_client", self._shared_http_client),
        ]

    def _start(self, original: Any) -> object:
        @functools.wraps(original)
        def start(span: Any, *args: Any, **kwargs: Any) -> None:
            self._tell(WORK.started, span)
            _bound(original, span)(*args, **kwargs)

        return _marked(start)

    def _finish(self, original: Any) -> object:
        @functools.wraps(original)
        def finish(span: Any, *args: Any, **kwargs: Any) -> None:
            self._tell(WORK.finished, span)
            _bound(original, span)(*args, **kwargs)

        return _marked(finish)

    def _set_error(self, original: Any) -> object:
        @functools.wraps(original)
        def set_error(span: Any, error: Any) -> None:
            self._tell(WORK.failed, span, error)
            _bound(original, span)(error)

        return _marked(set_error)

    def _from_agent_context(self, original: Any) -> object:
        @functools.wraps(original.__func__)
        def from_agent_context(cls: type, context: Any, tool_call_id: str, *args: Any, **kwargs: Any) -> Any:
            self._tell(WORK.called, tool_call_id)
            return original.__get__(None, cls)(context, tool_call_id, *args, **kwargs)

        return classmethod(_marked(from_agent_context))

    def _on_trace_start(self, original: Any) -> object:
        @functools.wraps(original)
        def on_trace_start(processor: Any, trace: Any) -> None:
            if not (self._active and VENDOR_EXPORT.keeps_back(processor, trace)):
                _bound(original, processor)(trace)

        return _marked(on_trace_start)

    def _on_span_end(self, original: Any) -> object:
        @functools.wraps(original)
        def on_span_end(processor: Any, span: Any) -> None:
            if not (self._active and VENDOR_EXPORT.keeps_back(processor, span)):
                _bound(original, processor)(span)

        return _marked(on_span_end)

    def _shared_http_client(self, original: Callable[[], Any]) -> object:
        @functools.wraps(original)
        def shared_http_client() -> Any:
            return self._http_clients.client(original) if self._active else original()

        return _marked(shared_http_client)

    def _tell(self, about: Callable[..., None], *facts: Any) -> None:
        if self._active:
            record(about, *facts)


def _bound(original: Any, owner: Any) -> Any:
    """The method of that object; wrappers of other libraries insist on being bound."""
    return original.__get__(owner, type(owner))


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _MARK, "spangrad-openai-agents")
    return function


_HOOKS: Final = _Hooks()
HOOKS: Final = SharedHooks(_HOOKS.apply, _HOOKS.revert)
"""The only ones in the process: the SDK's classes exist once, so their hooks have one owner."""
describe: Final = _HOOKS.describe
