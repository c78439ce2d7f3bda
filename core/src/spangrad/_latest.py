"""A set that forgets."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Latest(Generic[Key]):
    """The keys added last, so that what a long run remembers stays as large as it is.

    Args:
        most: how many; of more the first is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: dict[Key, None] = {}

    def add(self, key: Key) -> Key | None:
        """Adds a key; one that is there already stays where it is. Gives the key that is forgotten for it, if any."""
        self._keys[key] = None
        if len(self._keys) <= self._most:
            return None
        first = next(iter(self._keys))
        del self._keys[first]
        return first

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)
