"""How the value head of a backend learns, for estimators that go by a learnt value."""

from __future__ import annotations

from dataclasses import dataclass

from spangrad.backend._losses import LARGEST_COEFFICIENT, check_range


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The value loss: 1/2 (V - target)^2, summed with the weights of the policy loss (PPO, arXiv 1707.06347, equation 9).

    With a clip it is 1/2 max((V - target)^2, (clip(V, V_before - clip, V_before + clip) - target)^2), as PPO's first code has it.
    """

    learning_rate: float = 1e-2
    """Of the value head. It begins at 0 and sees features of length 1, so it needs far more than the policy's."""
    clip: float | None = None
    """How far from its value at the start of the step a value gains from moving, in the unit of the rewards; None for no bound."""
    coefficient: float = 0.0
    """What the value loss weighs in the gradient of the policy's own weights. With 0 the head takes what the model computes as it
    is: the policy's gradient stays the policy's, and no value of a young head can pull at the model that is being served."""

    def __post_init__(self) -> None:
        check_range("learning_rate", self.learning_rate, 0, 1, open_below=True)
        if self.clip is not None:
            check_range("clip", self.clip, 0, 1e6, open_below=True)
        check_range("coefficient", self.coefficient, 0, LARGEST_COEFFICIENT)
