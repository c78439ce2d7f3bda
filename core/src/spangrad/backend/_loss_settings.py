"""All that is minimised in one update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from spangrad.backend._corrections import Correction, check_together
from spangrad.backend._critic import CriticSettings
from spangrad.backend._losses import LARGEST_COEFFICIENT, PolicyLoss, PpoClip, check_range
from spangrad.errors import ConfigError

KlForm = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class KlTerm:
    """coefficient x an estimate of KL(policy || frozen reference), added to each token's loss.

    With d = log pi - log pi_ref (Schulman 2020, joschu.net/blog/kl-approx):

    * k1: value d. Its own derivative averages to nothing, so its gradient is d grad log pi, that of KL(pi || pi_ref).
    * k2: value d^2 / 2, gradient d grad log pi, the same.
    * k3: value exp(-d) - 1 + d, never negative; gradient (1 - exp(-d)) grad log pi, that of KL(pi_ref || pi).
    """

    form: KlForm
    coefficient: float

    def __post_init__(self) -> None:
        if self.form not in get_args(KlForm):
            raise ConfigError(f"Unknown KL form {self.form!r}", cure=f"Choose one of {', '.join(get_args(KlForm))}")
        check_range("coefficient", self.coefficient, 0, LARGEST_COEFFICIENT, open_below=True)


@dataclass(frozen=True, slots=True)
class LossSettings:
    """What is minimised: a policy loss, corrected, and the terms beside it.

    Each token's loss is correction x policy loss + KL term - entropy_bonus x entropy.
    """

    policy: PolicyLoss = field(default_factory=PpoClip)
    kl: KlTerm | None = None
    """None needs no reference."""
    entropy_bonus: float = 0.0
    """Factor of the entropy, in nats, of the distribution a token was drawn from."""
    corrections: tuple[Correction, ...] = ()
    """Their factors are multiplied."""
    critic: CriticSettings = field(default_factory=CriticSettings)
    """For batches with `UpdateBatch.value_targets`, whose value loss is minimised beside the rest."""

    def __post_init__(self) -> None:
        check_range("entropy_bonus", self.entropy_bonus, 0, LARGEST_COEFFICIENT)
        check_together(self.corrections)
