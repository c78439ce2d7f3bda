"""What to do about a loss or a gradient that is not finite."""

from __future__ import annotations

from spangrad.backend import CriticSettings
from spangrad.errors import BackendError


def not_finite(what: str, critic: CriticSettings | None) -> BackendError:
    """The error that ends an update.

    Args:
        what: is not finite, as the subject and verb of a sentence.
        critic: how the value is learnt that is part of the loss; None where none is.
    """
    smaller = "a smaller learning rate"
    if critic is not None:
        smaller += f" or algorithm.critic.learning_rate ({critic.learning_rate:g})"
        if critic.coefficient > 0:
            smaller += f", or a smaller algorithm.critic.coefficient ({critic.coefficient:g})"
    return BackendError(
        f"{what}, so no step was taken",
        cure=f"Go back to the last checkpoint with {smaller}; with precision bf16 also try fp32",
    )
