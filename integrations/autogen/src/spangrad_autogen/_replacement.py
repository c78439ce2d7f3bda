"""Replacing an attribute of a class or module, and putting back exactly what was there."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType


@dataclass(frozen=True, slots=True)
class _Replaced:
    """An attribute that holds something else than it did."""

    owner: type | ModuleType
    name: str
    original: object
    """As it lay in the owner's `__dict__`; None where the owner had none of its own."""
    installed: object

    def undo(self) -> bool:
        """Puts the original back, unless somebody else's replacement lies on top: taking that away is theirs to do.

        Returns:
            Whether ours is gone, which somebody else may have seen to.
        """
        there = vars(self.owner).get(self.name)
        if there is not self.installed:
            return not self._beneath(there)
        if self.original is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        return True

    def _beneath(self, there: object) -> bool:
        """Whether ours lies somewhere beneath a wrapper."""
        ours = getattr(self.installed, "__func__", self.installed)
        while there is not None and there is not ours and there is not self.installed:
            there = getattr(there, "__wrapped__", None)
        return there is not None


@dataclass
class Replacements:
    """All that one hook has replaced."""

    _made: dict[tuple[type | ModuleType, str], _Replaced] = field(default_factory=dict)

    def __contains__(self, place: tuple[type | ModuleType, str]) -> bool:
        return place in self._made

    def make(self, owner: type | ModuleType, name: str, installed: object) -> None:
        """Sets the attribute and remembers what was there."""
        self._made[owner, name] = _Replaced(owner, name, vars(owner).get(name), installed)
        setattr(owner, name, installed)

    def undo(self) -> None:
        """Puts everything back, the last one first. What lies beneath somebody else's stays known, and stays."""
        for place, replaced in reversed(list(self._made.items())):
            if replaced.undo():
                del self._made[place]
