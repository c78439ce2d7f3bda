"""How large a reward may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spangrad.errors import RewardError
from spangrad.transitions import TransitionBatch

LARGEST: Final = 1e30
"""Size of a reward, in its own unit. Squares of it and sums over a batch stay finite in float64, and it stays finite itself in
the float32 that losses are computed in."""


def check_size(reward: float, rollout_id: str) -> None:
    """Refuses a reward that statistics cannot be made of.

    Raises:
        RewardError: it is larger than `LARGEST`, above or below zero.
    """
    if abs(reward) > LARGEST:
        raise RewardError(
            f"The reward {reward:g} of rollout {rollout_id} is too large to be compared with others",
            cure=f"Scale rewards to a few units; {LARGEST:g} is the limit",
        )


def check_sizes(batch: TransitionBatch) -> None:
    """Refuses a batch with such a reward, be it a rollout's or a call's, by itself or in a sum.

    Raises:
        RewardError: as above; the first one is named.
    """
    seen: Mapping[str, float] | None = None
    for transition in batch.transitions:
        check_size(transition.rollout_reward, transition.rollout_id)
        if transition.reward is not None:
            check_size(transition.reward, transition.rollout_id)
        for reward in transition.components.values() if transition.components else ():
            check_size(reward, transition.rollout_id)
        if transition.rollout_components is not seen:  # the transitions of a rollout share it
            seen = transition.rollout_components
            for reward in seen.values():
                check_size(reward, transition.rollout_id)
