"""What a learnt value should have been, for the tokens at which that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spangrad.transitions._transition import BoolArray, FloatArray


@dataclass(frozen=True)
class ValueTargets:
    """Targets for the values before the first B sampled tokens of each of T actions.

    B is 1 where only the value before the whole call counts, the action's length where that before every token does, and 0 for
    a call without a value.
    """

    targets: Sequence[FloatArray]
    """(T,) of (B,) lambda-returns, in the unit of the rewards."""
    before: Sequence[FloatArray]
    """(T,) of (B,) the values that the targets were made from, those of the weights at the start of the step."""

    def select(self, keep: BoolArray | Sequence[bool]) -> ValueTargets:
        """Those of the transitions where `keep` (T,) is true, in order."""
        return ValueTargets(_kept(self.targets, keep), _kept(self.before, keep))


def _kept(rows: Sequence[FloatArray], keep: BoolArray | Sequence[bool]) -> tuple[FloatArray, ...]:
    return tuple(row for row, kept in zip(rows, keep, strict=True) if kept)
