"""Automatic intermediate rewarding: rewards of calls by rules over a rollout's spans and calls (arXiv 2508.03680, section 3.3)."""

from spangrad.rollouts.rules._conditions import CONDITIONS, OPTIONS
from spangrad.rollouts.rules._derivation import Derived, derived, user_rewards
from spangrad.rollouts.rules._rule import Occurrence, Rule
from spangrad.rollouts.rules._work import Work

__all__ = [
    "CONDITIONS",
    "OPTIONS",
    "Derived",
    "Occurrence",
    "Rule",
    "Work",
    "derived",
    "user_rewards",
]
