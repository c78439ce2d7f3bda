"""What is minimised, in verl's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from spangrad.backend import (
    Cispo,
    DualClip,
    Gspo,
    GspoToken,
    LossSettings,
    PolicyLoss,
    PpoClip,
    Reinforce,
    Sapo,
)

_NO_BOUND: Final = 1e9
"""verl's vanilla loss always has a second bound; its ratio never gets above exp(20) = 5e8."""
_KL_FORMS: Final = {"k1": "k1+", "k2": "k2", "k3": "k3"}
"""verl's k1 has a gradient that averages to nothing; its k1+ has the one of KL(policy || reference), as spangrad's k1."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A policy loss of verl's with its options, and the terms beside it."""

    mode: str
    """A name of verl's registry of policy losses."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    bound: float = _NO_BOUND
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    kl_form: str | None = None
    kl_coefficient: float = 0.0
    entropy_bonus: float = 0.0


LIKELIHOOD: Final = LossTerms("gpg")
"""-A log pi with A = 1."""


def loss_terms(loss: LossSettings) -> LossTerms:
    """The loss in verl's names; corrections are in the rows' weights already."""
    policy = _policy_loss(loss.policy)
    kl = loss.kl
    return LossTerms(
        mode=policy.mode,
        clip_low=policy.clip_low,
        clip_high=policy.clip_high,
        bound=policy.bound,
        tau_positive=policy.tau_positive,
        tau_negative=policy.tau_negative,
        kl_form=None if kl is None else _KL_FORMS[kl.form],
        kl_coefficient=0.0 if kl is None else kl.coefficient,
        entropy_bonus=loss.entropy_bonus,
    )


def _policy_loss(policy: PolicyLoss) -> LossTerms:
    match policy:
        case PpoClip(clip_low=low, clip_high=high):
            return LossTerms("vanilla", low, high)
        case DualClip(clip_low=low, clip_high=high, bound=bound):
            return LossTerms("vanilla", low, high, bound)
        case Gspo(clip_low=low, clip_high=high) | GspoToken(clip_low=low, clip_high=high):
            return LossTerms("gspo", low, high)
        case Cispo(clip_low=low, clip_high=high):
            return LossTerms("cispo", low, high)
        case Sapo(tau_positive=positive, tau_negative=negative):
            return LossTerms("sapo", tau_positive=positive, tau_negative=negative)
        case Reinforce():
            return LossTerms("gpg")
        case never:
            assert_never(never)
