"""Options that several credit assigners have."""

from __future__ import annotations

from math import isfinite

from spangrad.errors import ConfigError


def check_gamma(gamma: float, *, least: str = "from 0", name: str = "gamma") -> None:
    """Refuses a discount that is no number from 0 to 1.

    Args:
        gamma: what the user wrote.
        least: "from 0", or "above 0" where a discount of 0 would make everything equal.
        name: of the option.

    Raises:
        ConfigError: it is none.
    """
    number = type(gamma) in {int, float} and 0 <= gamma <= 1
    if not number or (gamma == 0 and least != "from 0"):
        raise ConfigError(f"{name} is {gamma!r}", cure=f"Give a number {least} to 1")


def check_weight(name: str, weight: float) -> None:
    """Refuses a weight that is no positive finite number: with 0 the setting would do nothing.

    Args:
        name: of the option.
        weight: what the user wrote.

    Raises:
        ConfigError: it is none.
    """
    if type(weight) not in {int, float} or not isfinite(weight) or weight <= 0:
        raise ConfigError(f"{name} is {weight!r}", cure="Give a number above 0")
