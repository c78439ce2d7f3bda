"""Corrections for samples of another policy.

The sampler's distribution mu may differ from the proximal policy's pi (see `UpdateBatch.proximal`): another server computes it
with other kernels or in another precision, or has older weights. A correction makes of w = pi / mu, which is known from the
recorded log-probabilities, a factor of each token's policy loss without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Literal, get_args

from spangrad.backend._losses import check_range
from spangrad.errors import ConfigError

Level = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class TruncatedIS:
    """min(w, cap): truncated importance sampling (Ionides 2008; for samplers that mismatch, Yao et al. 2025)."""

    level: Level = "token"
    """token: w of each token. sequence: the product of w over the action, for all its tokens."""
    cap: float = 2.0

    name: ClassVar[str] = "truncated_is"
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ConfigError(f"level is {self.level!r}", cure='Choose "token" or "sequence"')
        check_range("cap", self.cap, 1)  # a lower one scales every token down


@dataclass(frozen=True, slots=True)
class MaskedIS:
    """w where low <= w <= high, else 0, token by token (IcePop, arXiv 2510.18855)."""

    low: float = 0.5
    high: float = 5.0

    name: ClassVar[str] = "masked_is"
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_band(self.low, self.high)


@dataclass(frozen=True, slots=True)
class GeometricRejection:
    """1 where low <= exp(mean over the action of log w) <= high, else 0 for the whole action (Liu et al. 2025)."""

    low: float = 0.99
    high: float = 1.01

    name: ClassVar[str] = "geometric"
    weighs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_band(self.low, self.high)


Correction = TruncatedIS | MaskedIS | GeometricRejection

CORRECTIONS: Final[Mapping[str, Callable[..., Correction]]] = MappingProxyType(
    {kind.name: kind for kind in (TruncatedIS, MaskedIS, GeometricRejection)}
)
"""Name in the configuration -> what makes the correction from its options."""


def check_together(corrections: Sequence[Correction]) -> None:
    """Refuses corrections that contradict each other.

    Raises:
        ConfigError: two of one kind, or two that both weigh by importance.
    """
    names = [correction.name for correction in corrections]
    if len(set(names)) < len(names) or sum(correction.weighs for correction in corrections) > 1:
        raise ConfigError(
            f"The corrections {', '.join(names)} would weigh the same difference twice",
            cure="Give one of truncated_is and masked_is at most, and geometric once at most",
        )


def _check_band(low: float, high: float) -> None:
    """A band of ratios that contains 1."""
    check_range("low", low, 0, 1)
    check_range("high", high, 1)
