"""What a credit assigner is, and what most of them share. Axis letters: T transitions, R rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.transitions import BoolArray, FloatArray, TransitionBatch


@dataclass(frozen=True, slots=True)
class CreditNeeds:
    """What an assigner looks at besides rewards. The agent has to say it, or the assigner has less to tell."""

    states: bool = False
    """`Transition.state`; calls without one are in the state of their prompt."""
    scores: bool = False
    """`Transition.score`; without any the batch is refused."""
    agents: bool = False
    """`Transition.agent`."""
    own_groups: bool = False
    """It compares calls within groups finer than a task, which an estimator that compares the whole batch would undo."""
    losses: bool = False
    """What it gives may be below 0 although no reward is."""

    def in_words(self) -> tuple[str, ...]:
        """One phrase per need; empty for an assigner that takes anything."""
        phrases = {
            "states of calls, or equal prompts": self.states,
            "scores of states": self.scores,
            "agents known by name": self.agents,
            "an estimator that compares within groups": self.own_groups,
            "an estimator of returns below 0": self.losses,
        }
        return tuple(phrase for phrase, needed in phrases.items() if needed)


class CreditAssigner(Protocol):
    """Says what each transition earned and with which others it is compared.

    Pure: the same batch gives the same result, and nothing is remembered. An assigner may have more to say about itself:
    `needs` (see `needs_of`), `unused_rewards` and `warnings`, below.
    """

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """One comparison or several, whose advantages are summed; the ledger shows the returns of the first."""
        ...


@runtime_checkable
class IgnoresRewards(Protocol):
    """An assigner to which some calls' rewards make no difference."""

    def unused_rewards(self, batch: TransitionBatch) -> BoolArray:
        """(T,) the transition's own reward, if it has one, changes nothing."""
        ...


@runtime_checkable
class Warns(Protocol):
    """An assigner that has something to say about a batch."""

    def warnings(self, batch: TransitionBatch) -> tuple[str, ...]:
        """What the user should know, as sentences without a full stop."""
        ...


def needs_of(credit: object) -> CreditNeeds:
    """What an assigner, or the class of one, declares as its `needs`; nothing where it declares nothing."""
    declared = getattr(credit, "needs", None)
    return declared if isinstance(declared, CreditNeeds) else CreditNeeds()


def unused_rewards(credit: CreditAssigner, batch: TransitionBatch) -> BoolArray:
    """(T,) the transition has a reward of its own, and the assigner makes nothing of it."""
    if not isinstance(credit, IgnoresRewards):
        return np.zeros(len(batch), dtype=np.bool_)
    unused: BoolArray = credit.unused_rewards(batch) & (batch.call_rewards != 0)
    return unused


def credit_warnings(credit: CreditAssigner, batch: TransitionBatch, *, name: str) -> tuple[str, ...]:
    """What the user should know about how the assigner deals with the batch.

    Args:
        credit: the assigner.
        batch: the transitions.
        name: what the configuration calls it.
    """
    found = list(credit.warnings(batch)) if isinstance(credit, Warns) else []
    if unused := batch.call_rewards[unused_rewards(credit, batch)].tolist():
        sizes = [f"{reward:g}" for reward in dict.fromkeys(unused)]
        found.append(
            f"Rewards of calls are unused ({', '.join([*sizes[:5], *(['...'] if sizes[5:] else [])])}): the credit assigner "
            f"{name} makes nothing of them; return_to_go or turn_rewards would"
        )
    return tuple(found)


def among_rollouts(batch: TransitionBatch, returns: FloatArray, **settings: Any) -> Comparison:
    """The usual comparison: with the calls of all rollouts of the same task, every rollout weighing the same.

    Args:
        batch: the transitions.
        returns: (T,) what each earned.
        settings: further fields of the `Comparison`.
    """
    return Comparison(returns, batch.group_index[batch.rollout_index], batch.rollout_index, **settings)


def rollout_returns(batch: TransitionBatch) -> FloatArray:
    """(R,) undiscounted return R_i of each rollout: the rollout's reward plus the sum of its calls' rewards."""
    sums = np.bincount(batch.rollout_index, weights=batch.call_rewards, minlength=len(batch.rollout_keys))
    return batch.rollout_rewards + sums


def outcome(batch: TransitionBatch) -> Comparison:
    """Rollouts compared by their whole return R_i, which all their calls share."""
    return among_rollouts(batch, rollout_returns(batch)[batch.rollout_index])
