"""The policy losses spangrad has names for, each with the options it honours and no others.

A loss says how the probability ratio r of the policy to the proximal policy (see `UpdateBatch.proximal`) and a token's
advantage A become that token's loss. A backend lists the names it computes in `Capabilities.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from spangrad.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Clipping:
    """The bounds 1 - clip_low and 1 + clip_high of a ratio."""

    clip_low: float = 0.2
    """Ratios below 1 - clip_low gain nothing where the advantage is negative."""
    clip_high: float = 0.2
    """Ratios above 1 + clip_high gain nothing where the advantage is positive."""

    def __post_init__(self) -> None:
        check_range("clip_low", self.clip_low, 0, 1)
        check_range("clip_high", self.clip_high, 0)


@dataclass(frozen=True, slots=True)
class PpoClip(_Clipping):
    """-min(r A, clip(r) A): PPO (arXiv 1707.06347, eq. 7), with a bound of its own above (DAPO, arXiv 2503.14476, eq. 10)."""

    name: ClassVar[str] = "ppo_clip"
    uses_ratio: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DualClip(_Clipping):
    """PPO's loss, and where A < 0 never more than -bound A (arXiv 1912.09729, eq. 5)."""

    bound: float = 3.0
    """The paper's c: ratios above it lose no more where the advantage is negative."""

    name: ClassVar[str] = "dual_clip"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _Clipping.__post_init__(self)
        check_range("bound", self.bound, 1, open_below=True)
        if self.bound <= 1 + self.clip_high:
            raise ConfigError(
                f"bound is {self.bound}, inside the upper bound 1 + clip_high = {1 + self.clip_high}",
                cure="Choose a bound above 1 + clip_high; the paper takes 3",
            )


@dataclass(frozen=True, slots=True)
class Gspo(_Clipping):
    """PPO's loss on the ratio of the whole action, s = exp(mean over its tokens of log r) (arXiv 2507.18071, eqs. 5-7).

    The sequence is a call's action. Its ratio is a geometric mean, so the bounds are far narrower than those of tokens.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    name: ClassVar[str] = "gspo"
    uses_ratio: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GspoToken(_Clipping):
    """GSPO's variant for an advantage per token (arXiv 2507.18071, eqs. 13-14): the value of s, the gradient of each token.

    While all tokens of a call share one advantage it has GSPO's values and GSPO's gradient.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    name: ClassVar[str] = "gspo_token"
    uses_ratio: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Cispo:
    """-stop(clip(r)) A log pi (arXiv 2506.13585, eqs. 4-5): the weight is clipped, so every token keeps a gradient."""

    clip_low: float = 1.0
    """The paper's lower bound; 1 is none, as in its experiments."""
    clip_high: float = 4.0
    """The weight is never above 1 + clip_high. The paper gives no number; 4 is a cap of 5."""

    name: ClassVar[str] = "cispo"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("clip_low", self.clip_low, 0, 1)
        check_range("clip_high", self.clip_high, 0)


@dataclass(frozen=True, slots=True)
class Sapo:
    """-(4 / tau) sigmoid(tau (r - 1)) A: a soft gate instead of clipping (arXiv 2511.20347, eqs. 5-6)."""

    tau_positive: float = 1.0
    """Temperature where A > 0; a higher one closes the gate sooner."""
    tau_negative: float = 1.05
    """Temperature elsewhere; the paper takes it a little higher, for a bad token's gradient spreads over the vocabulary."""

    name: ClassVar[str] = "sapo"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("tau_positive", self.tau_positive, 0, open_below=True)
        check_range("tau_negative", self.tau_negative, 0, open_below=True)


@dataclass(frozen=True, slots=True)
class Reinforce:
    """-A log pi (Williams 1992): no ratio, no bounds."""

    name: ClassVar[str] = "reinforce"
    uses_ratio: ClassVar[bool] = False


PolicyLoss = PpoClip | DualClip | Gspo | GspoToken | Cispo | Sapo | Reinforce

LOSSES: Final[Mapping[str, Callable[..., PolicyLoss]]] = MappingProxyType(
    {kind.name: kind for kind in (PpoClip, DualClip, Gspo, GspoToken, Cispo, Sapo, Reinforce)}
)
"""Name in the configuration -> what makes the loss from its options."""


LARGEST_COEFFICIENT: Final = 100.0
"""Of a term beside the policy loss. Those in use are below 1; far larger ones are slips, and overflow in the end."""


def check_range(option: str, value: Any, low: float, high: float = math.inf, *, open_below: bool = False) -> None:
    """Refuses an option that is no finite number from `low` to `high`.

    Args:
        option: its name, for the message.
        value: what was given.
        low: the least it may be; itself not, if `open_below`.
        high: the most it may be.
        open_below: whether `low` itself is refused.

    Raises:
        ConfigError: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (open_below and value == low):
        least = f"above {low}" if open_below else f"at least {low}"
        most = "" if high == math.inf else f" and at most {high}"
        raise ConfigError(f"{option} is {value!r}", cure=f"Give {option} as a finite number, {least}{most}")
