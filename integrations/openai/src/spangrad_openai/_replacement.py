"""Replacing an attribute of a class or module, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """An attribute that holds something else than it did."""

    owner: type | ModuleType
    name: str
    original: object
    """As it lay in the owner's `__dict__`."""
    installed: object
    inherited: bool = False
    """The owner had no attribute of its own: undoing removes it."""

    @classmethod
    def make(cls, owner: type | ModuleType, name: str, installed: object) -> Replacement:
        """Sets the attribute and remembers what was there."""
        replacement = cls(owner, name, vars(owner)[name], installed)
        setattr(owner, name, installed)
        return replacement

    @property
    def on_top(self) -> bool:
        """Nobody has replaced it again since."""
        return vars(self.owner).get(self.name) is self.installed

    def undo(self) -> None:
        """Puts the original back, unless somebody else's replacement lies on top: taking that away is theirs to do."""
        if self.on_top:
            self.put_back()

    def put_back(self) -> None:
        """Puts the original back, whatever is there now."""
        if not self.inherited:
            setattr(self.owner, self.name, self.original)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)


def undo_around(replacements: Sequence[Replacement], uninstrument: Callable[[], None]) -> None:
    """Lets an instrumentor of another library uninstrument itself, then makes the result exact.

    Such an instrumentor may leave wrappers behind, or take away one that somebody put on top of its own.
    """
    theirs = [vars(item.owner).get(item.name) if not item.on_top else None for item in replacements]
    uninstrument()
    for item, their in zip(replacements, theirs, strict=True):
        if their is None:
            item.put_back()
        else:
            setattr(item.owner, item.name, their)
