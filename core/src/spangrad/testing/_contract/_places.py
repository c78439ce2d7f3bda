"""Every attribute of a library's modules and classes, to see whether any has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_RUNNING = frozenset({"threading:_active", "threading:_limbo", "threading:_dangling", "threading:_shutdown_locks"})
"""Says which threads there are, which is nobody's to restore."""

_FILLED_IN = frozenset(
    {"__dict__", "__weakref__", "_abc_impl", "__annotations__", "__annotations_cache__", "__signature__"}
)
"""What Python, its abstract classes and pydantic add to classes when they are first used."""

Places = Mapping[str, object]
"""Where -> what is there: a container's members, or the object itself."""


def places(packages: Sequence[str]) -> Places:
    """What is in these packages, as far as they are imported, and in the classes they define.

    Two results compare equal where every attribute is the same object; of a list, dict, set or tuple, the same members.
    """
    found: dict[str, object] = {}
    for name, module in sorted(sys.modules.items()):
        if any(name == package or name.startswith(f"{package}.") for package in packages):
            for place, value in _attributes(module):
                found[f"{name}:{place}"] = _content(value)
    for place in _RUNNING:
        found.pop(place, None)
    return found


def differences(before: Places, after: Places) -> list[str]:
    """Places that are in both and hold something else now, and places that are new in a class or gone."""
    changed = [place for place in before if place in after and not _alike(before[place], after[place])]
    modules = {place.partition(":")[0] for place in before}
    new = [place for place in after if place not in before and place.partition(":")[0] in modules]
    return sorted([*changed, *(place for place in before if place not in after), *new])


@contextmanager
def put_back(packages: Sequence[str]) -> Iterator[None]:
    """Puts the functions of these packages' classes back after the block: some instrumentors leave theirs behind."""
    kept = [
        (owner, name, value)
        for module_name, module in list(sys.modules.items())
        if any(module_name == package or module_name.startswith(f"{package}.") for package in packages)
        for owner in {id(owner): owner for owner in list(vars(module).values()) if _is_class(owner)}.values()
        if owner.__module__ == module_name
        for name, value in vars(owner).items()
        if callable(value)
    ]
    try:
        yield
    finally:
        for owner, name, value in kept:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)


def _attributes(module: ModuleType) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, value in list(vars(module).items()):
        if name in {"__builtins__", "__cached__"}:
            continue
        if type(value) is ModuleType:  # below a package, imported when somebody first needs it
            continue
        yield name, value
        if _is_class(value) and value.__module__ == module.__name__ and id(value) not in seen:
            seen.add(id(value))
            yield from _members(value, value.__qualname__)


def _members(owner: type, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(owner).items()):
        if name in _FILLED_IN or name.startswith("__pydantic_"):
            continue
        yield f"{path}.{name}", value
        if _is_class(value) and value.__qualname__ == f"{path}.{name}":
            yield from _members(value, f"{path}.{name}")


def _is_class(value: Any) -> bool:
    """By its real type: `isinstance` would have lazy proxies make what they stand for."""
    return issubclass(type(value), type)


class _Same:
    """One object, equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value  # kept, so that its id is not given to another

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _content(value: Any) -> object:
    if type(value) in {list, tuple}:
        return [_Same(value), *map(_Same, value)]
    if type(value) in {set, frozenset}:
        return [_Same(value), frozenset(map(_Same, value))]
    if type(value) is dict:
        return [_Same(value), {_key(key): _Same(member) for key, member in list(value.items())}]
    return _Same(value)


def _key(key: Any) -> object:
    return key if isinstance(key, str) else _Same(key)


def _alike(before: object, after: object) -> bool:
    return type(before) is type(after) and before == after
