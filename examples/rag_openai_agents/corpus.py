"""A small world made from a seed: invented people, what is true of them, and the passages that say so.

Facts are invented, so that no answer can be known without searching.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

FIRST = (
    "Ada",
    "Ben",
    "Cleo",
    "Dirk",
    "Edda",
    "Finn",
    "Gwen",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Leo",
    "Mara",
    "Nils",
    "Olga",
    "Paul",
)
LAST = ("Adler", "Brook", "Castle", "Drake", "Ember", "Frost", "Grove", "Hawk", "Irving", "Jasper", "Knight", "Lambert")
CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Delhi", "Paris", "Rome", "Tokyo", "Boston", "Dublin", "Madrid", "Vienna")
JOBS = ("baker", "pilot", "nurse", "farmer", "lawyer", "painter", "sailor", "teacher", "doctor", "judge")
THINGS = ("piano", "violin", "guitar", "flute", "drum", "harp", "trumpet", "cello")
ANIMALS = ("dog", "cat", "horse", "parrot", "rabbit", "turtle", "goat", "snake")
PEOPLE = 96
"""Of all the pairs of a first and a last name."""
HELDOUT = 32


@dataclass(frozen=True, slots=True)
class Person:
    """One invented person."""

    name: str
    city: str
    job: str
    instrument: str
    animal: str

    @property
    def facts(self) -> dict[str, str]:
        """Kind of fact -> the passage that states it."""
        return {
            "city": f"{self.name} was born in {self.city}.",
            "job": f"{self.name} works as a {self.job}.",
            "instrument": f"{self.name} plays the {self.instrument}.",
            "animal": f"{self.name} keeps a {self.animal}.",
        }


@cache
def people() -> tuple[Person, ...]:
    """Everybody; the last `HELDOUT` of them are asked about only in held-out questions."""
    rng = random.Random("people")
    names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], PEOPLE)
    return tuple(
        Person(name, rng.choice(CITIES), rng.choice(JOBS), rng.choice(THINGS), rng.choice(ANIMALS)) for name in names
    )


def passages() -> list[str]:
    """All facts about everybody, in an order that says nothing."""
    found = [fact for person in people() for fact in person.facts.values()]
    random.Random("passages").shuffle(found)
    return found
