"""Attributes that hold something else for a while, with others hooking in around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from spangrad.plugins import Replacements


class Base:
    def speak(self) -> str:
        return "hello"


@pytest.fixture
def animal() -> type:
    """A class with a method, a static method and a class method of its own, and one method that it inherits."""

    class Animal(Base):
        def run(self) -> str:
            return "ran"

        @staticmethod
        def count() -> int:
            return 1

        @classmethod
        def name(cls) -> str:
            return cls.__name__

    return Animal


def wrapped(method: Any, mark: str) -> Callable[..., str]:
    """A wrapper that says what it wraps, as `functools.wraps` has it."""

    @functools.wraps(method)
    def wrapper(*args: object) -> str:
        return f"{mark}({method(*args)})"

    return wrapper


def hiding(method: Any, mark: str) -> Callable[..., str]:
    """A wrapper that does not."""
    return lambda *args: f"{mark}({method(*args)})"


def put(replacements: Replacements, owner: Any, name: str, mark: str = "ours") -> object:
    replacements.make(owner, name, wrapped(getattr(owner, name), mark))
    return vars(owner)[name]


def test_undoing_puts_back_the_very_objects_that_lay_there(animal: type) -> None:
    before = dict(vars(animal))
    replacements = Replacements()
    put(replacements, animal, "run")
    replacements.make(animal, "count", staticmethod(lambda: 2))
    replacements.make(animal, "name", classmethod(lambda cls: f"a {cls.__name__}"))

    owner: Any = animal
    assert (owner().run(), owner.count(), owner.name(), len(replacements)) == ("ours(ran)", 2, "a Animal", 3)
    replacements.undo()
    assert dict(vars(animal)) == before
    assert len(replacements) == 0


def test_what_an_owner_only_inherited_is_gone_afterwards(animal: type) -> None:
    replacements = Replacements()
    put(replacements, animal, "speak")

    assert animal().speak() == "ours(hello)"
    replacements.undo()
    assert "speak" not in vars(animal)
    assert animal().speak() == "hello"


def test_an_attribute_that_was_none_is_none_again() -> None:
    module: Any = ModuleType("module")
    module.default = None
    replacements = Replacements()
    replacements.make(module, "default", 7)

    replacements.undo()
    assert vars(module)["default"] is None


def test_two_at_one_place_are_undone_in_turn(animal: type) -> None:
    plain = vars(animal)["run"]
    replacements = Replacements()
    put(replacements, animal, "run", "first")
    put(replacements, animal, "run", "second")

    assert animal().run() == "second(first(ran))"
    replacements.undo()
    assert vars(animal)["run"] is plain


@pytest.mark.parametrize("wrap", [wrapped, hiding])
def test_beneath_somebody_elses_it_stays_until_that_is_taken_away(animal: Any, wrap: Any) -> None:
    plain = vars(animal)["run"]
    replacements = Replacements()
    ours = put(replacements, animal, "run")
    theirs = wrap(ours, "theirs")
    animal.run = theirs

    replacements.undo()
    assert vars(animal)["run"] is theirs
    assert len(replacements) == 1
    animal.run = ours  # they take theirs away
    replacements.undo()
    assert vars(animal)["run"] is plain
    assert len(replacements) == 0


def test_it_is_seen_beneath_wrappers_that_say_what_they_wrap(animal: Any) -> None:
    replacements = Replacements()
    assert (animal, "run") not in replacements
    ours = put(replacements, animal, "run")
    assert (animal, "run") in replacements
    animal.run = wrapped(wrapped(ours, "theirs"), "another's")
    assert (animal, "run") in replacements


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_static_or_class_method_is_seen_beneath_wrappers_too(animal: Any, kind: Any) -> None:
    def count(*_: object) -> int:
        return 2

    replacements = Replacements()
    replacements.make(animal, "count", kind(count))
    animal.count = kind(wrapped(count, "theirs"))
    assert (animal, "count") in replacements


def test_what_somebody_took_away_can_be_put_there_again(animal: Any) -> None:
    plain = vars(animal)["run"]
    replacements = Replacements()
    put(replacements, animal, "run")
    animal.run = plain
    assert (animal, "run") not in replacements

    put(replacements, animal, "run", "again")
    assert animal().run() == "again(ran)"
    replacements.undo()
    assert vars(animal)["run"] is plain
    assert len(replacements) == 0


def test_on_top_of_one_that_hides_what_it_wraps_both_of_ours_go(animal: Any) -> None:
    plain = vars(animal)["run"]
    replacements = Replacements()
    ours = put(replacements, animal, "run")
    theirs = hiding(ours, "theirs")
    animal.run = theirs
    put(replacements, animal, "run", "again")

    replacements.undo()
    assert vars(animal)["run"] is theirs
    animal.run = ours
    replacements.undo()
    assert vars(animal)["run"] is plain


class Instrumentor:
    """Wraps two methods, one of them inherited, and takes away less, or more, than it put there."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def instrument(self) -> None:
        for name in ("run", "speak"):
            setattr(self._owner, name, wrapped(getattr(self._owner, name), "span"))

    def uninstrument(self) -> None:
        self._owner.run = vars(self._owner)["run"].__wrapped__  # whatever lies there
        self._owner.speak = Base.speak  # which was not its own


@pytest.fixture
def noted(animal: Any) -> tuple[Replacements, Instrumentor]:
    """An instrumentor that has been switched on, and what it replaced."""
    before = {name: vars(animal).get(name) for name in ("run", "speak")}
    instrumentor = Instrumentor(animal)
    instrumentor.instrument()
    replacements = Replacements()
    for name, own in before.items():
        replacements.note(animal, name, own, inherited=own is None)
    return replacements, instrumentor


def test_what_an_instrumentor_leaves_behind_is_cleared_away(
    animal: Any, noted: tuple[Replacements, Instrumentor]
) -> None:
    replacements, instrumentor = noted
    assert (animal().run(), animal().speak()) == ("span(ran)", "span(hello)")

    replacements.undo_around(instrumentor.uninstrument)
    assert animal().run() == "ran"
    assert "speak" not in vars(animal)
    assert len(replacements) == 0


def test_what_somebody_put_on_top_of_an_instrumentors_stays(
    animal: Any, noted: tuple[Replacements, Instrumentor]
) -> None:
    replacements, instrumentor = noted
    theirs = wrapped(vars(animal)["run"], "theirs")
    animal.run = theirs

    replacements.undo_around(instrumentor.uninstrument)
    assert vars(animal)["run"] is theirs
    assert "speak" not in vars(animal)
