"""What counts as a reward."""

from __future__ import annotations

import math
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
    number = _number(value)
    if number is None:
        raise RewardError(
            f"{giver} is {_described(value)}, not a number", cure="A reward is a finite int, float or bool"
        )
    if not math.isfinite(number):
        raise RewardError(
            f"{giver} is {number}", cure="A reward is a finite number: look for a division by zero or an empty mean"
        )
    return number


def _number(value: object) -> float | None:
    if isinstance(value, Real):  # bool, int, float, Fraction and numpy's scalars
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if getattr(value, "shape", None) == ():  # numpy's bool and arrays or tensors without axes, which are no `Real`
        item = value.item()  # type: ignore[attr-defined]  # what has an empty shape has item() in numpy, torch and jax alike
        return _number(item)
    return None


def _described(value: object) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
