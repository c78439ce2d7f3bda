"""Finding the user's functions: "module:function", the module being a file beside the configuration."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spangrad.errors import AgentError, SpangradError
from spangrad.rollouts._user_folder import UserFolder, user_folder


def load_function(
    spec: str, folder: Path, *, noun: str = "agent", error: type[SpangradError] = AgentError
) -> Callable[..., Any]:
    """The function that `spec` names. While it runs, its neighbours in the folder can be imported.

    Args:
        spec: "module:function"; dots lead into packages before the colon and into attributes after it.
        folder: where the module is looked for first; after it, wherever Python looks.
        noun: what the function is, for messages.
        error: class of the error raised.

    Raises:
        SpangradError: of class `error`: `spec` is no such pair, the module cannot be imported (with the cause and its place),
            it has no such attribute, or that cannot be called.
    """
    module_name, _, attribute = spec.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise error(f"The {noun} {spec!r} does not have the form module:function", cure='Write it like "agent:solve"')
    home = user_folder(folder)
    with home.active():
        found: Any = _imported(module_name, home, noun, error)
        for name in attribute.split("."):
            if not hasattr(found, name):
                raise error(
                    f"The {noun} {spec!r} does not exist: {_described(found)} has no {name!r}", cure=_names_in(found)
                )
            found = getattr(found, name)
    if not callable(found):
        raise error(
            f"The {noun} {spec!r} is of type {type(found).__name__}, which cannot be called", cure="Name a function"
        )
    return _at_home(found, home)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: an `async def`, a partial of one, or an object whose `__call__` is one."""
    plain = inspect.unwrap(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004 - the method, not whether there is one


def _imported(name: str, home: UserFolder, noun: str, error: type[SpangradError]) -> Any:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and home.finds(top):
        raise error(f"{home.path / top}.py has the name of a module of Python itself", cure="Rename the file")
    home.claim(top)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        if cause.name is None or not f"{name}.".startswith(f"{cause.name}."):
            raise _import_error(name, cause, home, noun, error) from cause
        what = f"The {noun}'s module {name!r} is neither in {home.path} nor installed"
        raise error(what, cure=f"Write it to {home.path / top}.py or correct its name") from cause
    except (Exception, SystemExit) as cause:  # the user's module may raise anything while it is imported
        raise _import_error(name, cause, home, noun, error) from cause


def _import_error(
    name: str, cause: BaseException, home: UserFolder, noun: str, error: type[SpangradError]
) -> SpangradError:
    what = f"The {noun}'s module {name!r} cannot be imported: {type(cause).__name__}: {cause}"
    if isinstance(cause, SyntaxError):  # it says its own place
        return error(what, cure="Correct the file")
    frames = [
        frame for frame in traceback.extract_tb(cause.__traceback__) if Path(frame.filename).is_relative_to(home.path)
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    missing = isinstance(cause, ModuleNotFoundError)
    return error(what + place, cure="Install what it imports, or correct the name" if missing else "Correct the file")


def _described(found: Any) -> str:
    return str(getattr(found, "__file__", None) or getattr(found, "__qualname__", None) or type(found).__name__)


def _names_in(found: Any) -> str:
    home = getattr(found, "__name__", None)
    names = [
        name for name, value in vars(found).items() if callable(value) and getattr(value, "__module__", None) == home
    ]
    return f"It has: {', '.join(names)}" if names else ""


def _at_home(function: Callable[..., Any], home: UserFolder) -> Callable[..., Any]:
    """The function with its folder importable while it runs; signature and name stay."""
    if is_async(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with home.active():
                return await function(*args, **kwargs)

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with home.active():
            return function(*args, **kwargs)

    return run
