"""Whether the Agents SDK looks as this package knows it."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from types import ModuleType
from typing import Any, Final

from spangrad.errors import OtherModuleError, PluginError

_METHODS: Final = (
    ("agents.tracing.spans", "SpanImpl", "start", {"mark_as_current"}),
    ("agents.tracing.spans", "SpanImpl", "finish", {"reset_current"}),
    ("agents.tracing.spans", "NoOpSpan", "start", {"mark_as_current"}),
    ("agents.tracing.spans", "NoOpSpan", "finish", {"reset_current"}),
    ("agents.tracing.spans", "NoOpSpan", "set_error", {"error"}),
    ("agents.tracing.scope", "Scope", "get_current_span", set[str]()),
    ("agents.tracing.processors", "BatchTraceProcessor", "on_trace_start", {"trace"}),
    ("agents.tracing.processors", "BatchTraceProcessor", "on_span_end", {"span"}),
    ("agents.tool_context", "ToolContext", "from_agent_context", {"context", "tool_call_id"}),
)
"""Methods that are hooked or called, and the arguments relied on."""
_DATA: Final = (
    ("AgentSpanData", {"name"}),
    ("FunctionSpanData", {"name", "input", "output"}),
    ("HandoffSpanData", {"from_agent", "to_agent"}),
    ("GuardrailSpanData", {"name", "triggered"}),
    ("CustomSpanData", {"name"}),
)
"""Kinds of span data that are read, and the fields relied on."""


def installed() -> str:
    """Version of the distribution openai-agents; empty where it is not installed as one."""
    try:
        return version("openai-agents")
    except PackageNotFoundError:
        return ""


def check() -> None:
    """Compares the SDK with the shape the hooks rely on.

    Raises:
        OtherModuleError: the module `agents` is something else.
        PluginError: it is not installed, or has another shape.
    """
    _check_identity()
    for module, owner, name, arguments in _METHODS:
        _check_method(_member(module, owner), name, arguments)
    if not callable(_member("agents.models.openai_provider", "shared_http_client")):
        raise _changed("shared_http_client")
    for owner, fields in _DATA:
        kind = _member("agents.tracing.span_data", owner)
        if not _takes(kind.__init__, fields) or not isinstance(vars(kind).get("type"), property):
            raise _changed(owner)


def _check_identity() -> None:
    """Of a program's own package, which may well have a module `tracing`, no more is imported than the program has imported."""
    try:
        found = import_module("agents")
    except ImportError as error:
        raise _cannot_import(error) from error
    try:
        found.Runner  # noqa: B018 - whether it can be read is the question
    except AttributeError as error:
        raise _another(found) from error
    try:
        import_module("agents.tracing")
    except ImportError as error:
        raise _cannot_import(error) from error


def _member(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"openai-agents {installed()}: {module}.{name} does not exist", cure=cure()) from error


def _check_method(owner: type, name: str, arguments: set[str]) -> None:
    method = vars(owner).get(name)
    if isinstance(method, classmethod):
        method = method.__func__
    if not inspect.isfunction(method) or inspect.iscoroutinefunction(method) or not _takes(method, arguments):
        raise _changed(f"{owner.__name__}.{name}")


def _takes(function: Any, arguments: set[str]) -> bool:
    """Whether it has these parameters, or takes anything, as somebody's wrapper around it may."""
    parameters = inspect.signature(function).parameters
    anything = {parameter.kind for parameter in parameters.values()} >= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    return anything or arguments <= set(parameters)


def _changed(what: str) -> PluginError:
    return PluginError(
        f"openai-agents {installed()}: {what} has another shape than spangrad-openai-agents knows", cure=cure()
    )


def _cannot_import(error: ImportError) -> PluginError:
    if not isinstance(error, ModuleNotFoundError) or not (error.name or "").startswith("agents"):
        return PluginError(f"openai-agents {installed()} cannot be imported: {error}", cure=cure())
    if error.name == "agents":
        return PluginError("openai-agents is not installed", cure=cure())
    return _another(import_module("agents"))


def _another(found: ModuleType) -> OtherModuleError:
    where = getattr(found, "__file__", None) or ", ".join(found.__path__)
    return OtherModuleError(
        f"The package agents found here is not the OpenAI Agents SDK ({where})",
        cure="If your agent uses the SDK, give that package another name; if not, all is well",
    )


def cure() -> str:
    """The pip line for a supported SDK, from our own metadata."""
    lines = requires("spangrad-openai-agents") or ()
    wanted = next((line for line in lines if line.startswith("openai-agents")), "openai-agents")
    return f'pip install "{wanted}", or update spangrad-openai-agents'
