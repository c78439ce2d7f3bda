"""A reward as lists of rollouts show it."""

from __future__ import annotations

from typing import Final

_LONG: Final = 1e6
"""From this size on three decimals say nothing, and the digits before them fill the line."""


def reward_text(reward: float | None) -> str:
    """The reward with three decimals, a very large one in short; a dash for none."""
    if reward is None:
        return "-"
    return f"{reward:.3f}" if abs(reward) < _LONG else f"{reward:g}"
