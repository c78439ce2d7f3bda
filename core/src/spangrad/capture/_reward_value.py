"""What counts as a reward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from spangrad.errors import RewardError

_SHOWN = 80
"""Characters of a refused value that the message quotes."""


def reward_value(value: object, *, giver: str = "The reward") -> float:
    """The reward as a float; True is 1 and False is 0.

    Args:
        value: what somebody gave as a reward; any real number will do, numpy's and one-element tensors' own included.
        giver: who gave it, as the beginning of the message.

    Raises:
        RewardError: it is not a finite real number.
    """
    number = real_number(value)
    if number is None:
        raise RewardError(
            f"{giver} is {described(value)}, not a number", cure="A reward is a finite int, float or bool"
        )
    if not math.isfinite(number):
        raise RewardError(
            f"{giver} is {number}", cure="A reward is a finite number: look for a division by zero or an empty mean"
        )
    return number


def named_rewards(value: object, *, giver: str, name: str = "reward") -> dict[str, float]:
    """The rewards that a judge gave, by name.

    Args:
        value: one reward, or a mapping of names to rewards.
        giver: who gave it, as the beginning of the message.
        name: of a reward that comes without one.

    Raises:
        RewardError: a reward is not a finite real number, a name is no text, or the mapping is empty.
    """
    if not isinstance(value, Mapping):
        return {name: reward_value(value, giver=giver)}
    if not value:
        raise RewardError(f"{giver} is an empty mapping", cure="Give a number, or a mapping of names to numbers")
    for key in value:
        if not isinstance(key, str) or not key:
            raise RewardError(f"{giver} has {described(key)} for a name", cure="Name each reward by a text")
    return {key: reward_value(number, giver=f"{giver}, {key!r},") for key, number in value.items()}


def real_number(value: object) -> float | None:
    """The value as a float, infinity where it is larger than any; None when it is no real number."""
    if isinstance(value, Real):  # bool, int, float, Fraction and numpy's scalars
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if getattr(value, "shape", None) == ():  # numpy's bool and arrays or tensors without axes, which are no `Real`
        item = value.item()  # type: ignore[attr-defined]  # what has an empty shape has item() in numpy, torch and jax alike
        return real_number(item)
    return None


def described(value: object) -> str:
    """A value as a message shows it: its type and the beginning of its text."""
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
