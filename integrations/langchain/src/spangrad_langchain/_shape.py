"""Whether LangChain looks as this package knows it."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

from spangrad.errors import PluginError

_EVENTS: Final = {
    "on_chain_start": ("serialized", "inputs", "run_id", "parent_run_id", "tags", "metadata"),
    "on_chain_end": ("outputs", "run_id"),
    "on_chain_error": ("error", "run_id"),
    "on_tool_start": ("serialized", "input_str", "run_id", "parent_run_id", "metadata", "inputs"),
    "on_tool_end": ("output", "run_id"),
    "on_tool_error": ("error", "run_id"),
    "on_chat_model_start": ("serialized", "messages", "run_id", "parent_run_id", "metadata"),
    "on_llm_start": ("serialized", "prompts", "run_id", "parent_run_id", "metadata"),
    "on_llm_end": ("response", "run_id"),
    "on_llm_error": ("error", "run_id"),
    "on_retriever_start": ("serialized", "query", "run_id", "parent_run_id", "metadata"),
    "on_retriever_end": ("documents", "run_id"),
    "on_retriever_error": ("error", "run_id"),
}
"""What a handler is told of, and the arguments relied on."""


def installed() -> str:
    """Version of the distribution langchain-core; empty where it is not installed as one."""
    try:
        return version("langchain-core")
    except PackageNotFoundError:
        return ""


def check() -> None:
    """Compares LangChain with the shape the hooks rely on.

    Raises:
        PluginError: it is not installed, or has another shape.
    """
    handler = _member("langchain_core.callbacks", "BaseCallbackHandler")
    for event, arguments in _EVENTS.items():
        if not _takes(getattr(handler, event, None), arguments):
            raise _changed(f"BaseCallbackHandler.{event}")
    if getattr(handler, "run_inline", None) is not False:
        raise _changed("BaseCallbackHandler.run_inline")
    register = _member("langchain_core.tracers.context", "register_configure_hook")
    if not _takes(register, ("context_var", "inheritable", "handle_class")):
        raise _changed("register_configure_hook")
    hooks = _member("langchain_core.tracers.context", "_configure_hooks")
    if not isinstance(hooks, list) or not all(isinstance(hook, tuple) and hook for hook in hooks):
        raise _changed("_configure_hooks")
    if not isinstance(_member("langchain_core.runnables.config", "var_child_runnable_config"), ContextVar):
        raise _changed("var_child_runnable_config")
    manager = _member("langchain_core.callbacks", "BaseCallbackManager")
    if not _takes(manager.__init__, ("handlers", "parent_run_id")):
        raise _changed("BaseCallbackManager")


def cure() -> str:
    """The pip line for a supported LangChain, from our own metadata."""
    lines = requires("spangrad-langchain") or ()
    wanted = next((line for line in lines if line.startswith("langchain-core")), "langchain-core")
    return f'pip install "{wanted}", or update spangrad-langchain'


def _member(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise PluginError(f"langchain-core {installed()}: {module}.{name} does not exist", cure=cure()) from error
    except ImportError as error:
        raise _cannot_import(error, module) from error


def _cannot_import(error: ImportError, module: str) -> PluginError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing == "langchain_core":
        return PluginError("langchain-core is not installed", cure=cure())
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return PluginError(f"langchain-core {installed()}: the module {missing} does not exist", cure=cure())
    return PluginError(f"langchain-core {installed()} cannot be imported: {error}", cure=cure())


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Whether it is a plain function with these parameters, or takes anything, as somebody's wrapper around it may."""
    if not callable(function) or inspect.iscoroutinefunction(function):
        return False
    parameters = inspect.signature(function).parameters
    anything = {parameter.kind for parameter in parameters.values()} >= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    return anything or set(arguments) <= set(parameters)


def _changed(what: str) -> PluginError:
    return PluginError(
        f"langchain-core {installed()}: {what} has another shape than spangrad-langchain knows", cure=cure()
    )
