"""Applying a run's rules to a rollout whose agent has ended by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from spangrad.capture import flush_spans
from spangrad.errors import InfrastructureError, RewardError
from spangrad.rollouts._failure import blocked, failure
from spangrad.rollouts._lanes import Lanes
from spangrad.rollouts.rules import Derived, Rule, Work, derived, user_rewards
from spangrad.store import Store


async def rule_rewards(
    rules: Sequence[Rule], store: Store, rollout_id: str, attempt: int, *, lanes: Lanes, limit: float | None
) -> Derived:
    """What the rules give for an attempt; nothing without rules.

    Args:
        rules: of the run.
        store: holds the attempt's calls and spans.
        rollout_id: whose.
        attempt: whose.
        lanes: where the user's functions run.
        limit: seconds that each function may take; None does not limit.

    Raises:
        RewardError: a function raised, took too long, or gave something that is no rewards of calls; it is named.
        InfrastructureError: an agent kept a function from going on.
        StoreError: the store cannot be read.
    """
    if not rules:
        return Derived()
    work = await asyncio.to_thread(work_of, store, rollout_id, attempt)
    given = {
        rule.name: user_rewards(rule, await _called(rule, rule.function, work, lanes, limit), work)
        for rule in rules
        if rule.function is not None
    }
    return derived(rules, work, given)


def work_of(store: Store, rollout_id: str, attempt: int) -> Work:
    """What the store holds of an attempt whose agent has ended. Blocks until all its spans are there.

    Raises:
        StoreError: the store cannot be read.
    """
    flush_spans()
    spans = [span for span in store.spans(rollout_id) if span.attempt in {None, attempt}]
    return Work.of(store.calls(rollout_id, attempt), spans)


async def _called(rule: Rule, function: Callable[..., Any], work: Work, lanes: Lanes, limit: float | None) -> object:
    """What the rule's function returns."""
    who = f"The function {rule.function_name!r} of the rule {rule.name!r}"
    outcome = await lanes.call(
        lambda: function(work.calls, work.spans),
        asynchronous=rule.asynchronous,
        limit=limit,
        name=who,
    )
    if outcome.blocked_by:
        raise InfrastructureError(blocked(who, outcome.blocked_by))
    if outcome.timed_out:
        raise RewardError(f"{who} was still running after {limit:g} seconds")
    if outcome.error is not None:
        raise RewardError(failure(who, outcome.error))
    return outcome.value
