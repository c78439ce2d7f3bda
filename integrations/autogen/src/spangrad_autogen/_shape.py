"""Whether AutoGen looks as this package knows it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from spangrad.errors import PluginError
from spangrad_autogen._cure import cure
from spangrad_autogen._wrappers import MARK, Hook, bare


def installed() -> str:
    """Version of autogen-core; empty where it was not installed as a package."""
    try:
        return version("autogen-core")
    except PackageNotFoundError:
        return ""


def changed(owner: type | ModuleType, name: str, how: str) -> PluginError:
    """The error for a place that is not as expected."""
    return PluginError(f"autogen-core {installed()}: {owner.__name__}.{name} {how}", cure=cure())


def check(owner: type | ModuleType, name: str, hook: Hook) -> None:
    """Compares one method with the shape its hook relies on.

    Raises:
        PluginError: it is missing or has another shape, or carries another copy's hook.
    """
    method = vars(owner).get(name)
    if method is None:
        raise changed(owner, name, "does not exist")
    if hasattr(bare(method), MARK):
        raise PluginError(
            f"{owner.__name__}.{name} is hooked already, by another copy of spangrad-autogen",
            cure="Install it only once",
        )
    if not hook.fits(method):
        raise changed(owner, name, "has another shape than spangrad-autogen knows")
