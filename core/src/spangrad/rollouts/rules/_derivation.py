"""From rules and a rollout's work to rewards of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spangrad.capture import reward_value
from spangrad.errors import RewardError
from spangrad.rollouts.rules._conditions import CONDITIONS
from spangrad.rollouts.rules._rule import FUNCTION, Rule
from spangrad.rollouts.rules._work import Work

CallReward = tuple[str, float]
"""A call's id and a reward of it."""


@dataclass(frozen=True, slots=True)
class Derived:
    """What rules gave for a rollout."""

    rewards: tuple[tuple[Rule, str, float], ...] = ()
    """Rule, call id and value of each reward."""
    unlinked: int = 0
    """How often a condition was met by something of which no call is known; it gave nothing."""


def derived(rules: Sequence[Rule], work: Work, given: Mapping[str, Sequence[CallReward]]) -> Derived:
    """The rewards of all rules. Pure.

    Args:
        rules: with distinct names.
        work: of the rollout.
        given: name of each rule with a function -> what that gave (see `user_rewards`).
    """
    rewards: list[tuple[Rule, str, float]] = []
    unlinked = 0
    for rule in rules:
        found: Sequence[CallReward]
        if rule.when == FUNCTION:
            found = given[rule.name]
        else:
            met = list(_met(rule, work))
            unlinked += met.count(None)
            found = [(call_id, rule.reward) for call_id in met if call_id is not None]
        rewards += [(rule, call_id, value) for call_id, value in _limited(found, rule.at_most)]
    return Derived(tuple(rewards), unlinked)


def user_rewards(rule: Rule, given: Any, work: Work) -> list[CallReward]:
    """What a rule's function gave, checked, in the order of the calls.

    Raises:
        RewardError: it is no mapping of ids of answered calls to finite numbers; the function is named.
    """
    giver = f"What the function {rule.function_name!r} of the rule {rule.name!r} returned"
    if not isinstance(given, Mapping):
        raise RewardError(
            f"{giver} is of type {type(given).__name__}", cure="Return a mapping of call ids to numbers; {} for none"
        )
    known = [call.call_id for call in work.calls]
    if unknown := [key for key in given if key not in known]:
        raise RewardError(
            f"{giver} rewards {unknown[0]!r}, which is no answered call of the rollout",
            cure="Use the `call_id` of the calls it is given",
        )
    return [
        (call_id, reward_value(given[call_id], giver=f"{giver} for call {call_id}"))
        for call_id in known
        if call_id in given
    ]


def _met(rule: Rule, work: Work) -> Iterator[str | None]:
    """The call of each time the rule's condition was met, where tool and agent are those it asks for."""
    for occurrence in CONDITIONS[rule.when](work, rule):
        call_id = occurrence.call_id
        agent = occurrence.agent if call_id is None else work.agents[call_id]
        if rule.tool in {None, occurrence.tool} and rule.agent in {None, agent}:
            yield call_id


def _limited(rewards: Iterable[CallReward], at_most: float | None) -> Iterator[CallReward]:
    """The rewards up to the one with which their sizes come to the limit; that one is cut to what is left."""
    left = at_most
    for call_id, value in rewards:
        if left is None:
            yield call_id, value
            continue
        if left <= 0:
            return
        size = min(abs(value), left)
        yield call_id, size if value >= 0 else -size
        left -= size
