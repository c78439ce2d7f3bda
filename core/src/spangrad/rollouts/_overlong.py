"""A penalty for rollouts that take too many tokens: DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

The paper's length is that of one answer. An agent gives many answers, so here it is that of the rollout: the tokens sampled in
all its calls. Otherwise an agent could escape it by calling more often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spangrad.transitions import Call

OVERLONG: Final = "overlong"
"""Name of the reward."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """From how many tokens on a rollout is punished, and how much."""

    max_tokens: int
    """Tokens from which on the whole penalty is due (the paper's L_max)."""
    cache: int
    """The last of them over which it grows from nothing (the paper's L_cache)."""
    penalty: float = 1.0
    """Its size; the paper's is 1."""

    def reward(self, tokens: int) -> float:
        """0 up to `max_tokens - cache`, then falling evenly to `-penalty` at `max_tokens` and staying there. Pure."""
        over = tokens - (self.max_tokens - self.cache)
        return -self.penalty * (min(over, self.cache) / self.cache) if over > 0 else 0.0


def sampled_tokens(calls: Iterable[Call]) -> int:
    """Tokens sampled from the policy in these calls, all choices included."""
    return sum(len(choice.token_ids or ()) for call in calls if call.policy is not None for choice in call.choices)
