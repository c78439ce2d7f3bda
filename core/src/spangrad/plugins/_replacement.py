"""Replacing attributes of classes and modules, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, TypeAlias

Place: TypeAlias = tuple[type | ModuleType, str]

_ABSENT: Final = object()
"""In place of what an owner does not have of its own."""


class Replacements:
    """What one hook has put in the place of attributes of classes and modules.

    Others hook in, too, and may do so on top of ours. Theirs is never taken away: ours then stays beneath it, must do nothing
    when it is called, and is still known, so that it goes when it comes to lie on top again.
    """

    def __init__(self) -> None:
        self._made: dict[Place, list[_Replacement]] = {}
        """By place, the earliest first: there are more than one where others hide what lies beneath theirs."""

    def __contains__(self, place: Place) -> bool:
        """Whether ours is seen to lie at this place (owner, name), on top or beneath the wrappers of others."""
        return any(item.there for item in self._made.get(place, ()))

    def __len__(self) -> int:
        """At how many places something has been put."""
        return len(self._made)

    def make(self, owner: type | ModuleType, name: str, installed: object) -> None:
        """Puts `installed` where the owner has, or inherits, an attribute of that name."""
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, installed)
        self._keep(_Replacement(owner, name, original, installed))

    def note(self, owner: type | ModuleType, name: str, original: object, *, inherited: bool = False) -> None:
        """Takes what lies there as ours, put there on our behalf.

        Args:
            owner: the class or module.
            name: the attribute's.
            original: what lay in the owner's `__dict__` before.
            inherited: nothing lay there, and `original` is of no concern.
        """
        self._keep(_Replacement(owner, name, _ABSENT if inherited else original, vars(owner)[name]))

    def undo(self) -> None:
        """Puts the originals back, but where somebody else's lies on top: taking that away is theirs to do."""
        for place, items in reversed(list(self._made.items())):
            for item in reversed(items):
                if item.on_top:
                    item.put_back()
            if items[0].undone:
                del self._made[place]

    def undo_around(self, uninstrument: Callable[[], None]) -> None:
        """Lets an instrumentor of another library take its own away, then makes the result exact.

        Such an instrumentor may leave wrappers behind, or take away one that somebody put on top of its own.
        """
        found = [(item, item.lying) for items in self._made.values() for item in items]
        uninstrument()
        for item, lay_there in found:
            if lay_there is item.installed or lay_there is _ABSENT:
                item.put_back()
            else:
                setattr(item.owner, item.name, lay_there)
        self._made.clear()

    def _keep(self, item: _Replacement) -> None:
        self._made.setdefault((item.owner, item.name), []).append(item)


@dataclass(frozen=True, slots=True)
class _Replacement:
    """One attribute that was made to hold something else."""

    owner: type | ModuleType
    name: str
    original: object
    """As it lay in the owner's `__dict__`; `_ABSENT` where the owner had none of its own."""
    installed: object

    @property
    def lying(self) -> object:
        """What lies there now."""
        return vars(self.owner).get(self.name, _ABSENT)

    @property
    def on_top(self) -> bool:
        """Nobody has replaced it again since."""
        return self.lying is self.installed

    @property
    def undone(self) -> bool:
        """The original lies there."""
        return self.lying is self.original

    @property
    def there(self) -> bool:
        """It lies there, be it beneath wrappers that say what they wrap."""
        ours = getattr(self.installed, "__func__", self.installed)  # of a class method or static method
        found: object = self.lying
        while found is not None and found is not ours and found is not self.installed:
            found = getattr(found, "__wrapped__", None)
        return found is not None

    def put_back(self) -> None:
        """Puts the original back, whatever is there now."""
        if self.original is not _ABSENT:
            setattr(self.owner, self.name, self.original)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)
