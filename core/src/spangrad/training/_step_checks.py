"""What a step's rollouts must have been for the step to be trained on."""

from __future__ import annotations

from collections.abc import Sequence

from spangrad.errors import AgentError, TokenIdsMissingError
from spangrad.rollouts import RolloutResult
from spangrad.rollouts.rules import Rule
from spangrad.store import RolloutStatus
from spangrad.training._collection import Collection
from spangrad.training._session import Session
from spangrad.transitions import RewardWeights


def check_ids(session: Session) -> None:
    """Stops before the optimiser when a policy's endpoint gave nothing to train on.

    Raises:
        TokenIdsMissingError: none of its calls came with token ids.
    """
    counts = session.gateway.id_counts()
    for engine in session.engines.values():
        count = counts.get(engine.name)
        if count is not None and count.calls and not count.with_ids:
            raise TokenIdsMissingError(
                f"0 of {count.calls} calls answered by {engine.name} have ids: the endpoint returns no token ids or logprobs",
                cure="Use a server that answers `return_token_ids` (vLLM 0.10.2 or newer), or leave out policy.endpoint",
            )


def missing_agents(session: Session, collection: Collection) -> str:
    """Which of the agents to be trained made no call, as a sentence; empty when all did.

    Raises:
        AgentError: none of them made any, those of all policies taken together.
    """
    config = session.preparation.config
    wanted = {policy.name: policy.agents or () for policy in config.trained}
    missing = {name: [agent for agent in agents if agent not in collection.agents] for name, agents in wanted.items()}
    if not any(missing.values()):
        return ""
    seen = ", ".join(sorted(repr(name) for name in collection.agents if name is not None)) or "no agent by name"
    names = " and ".join(
        f"{f'policies.{name}.train' if config.policies else 'policy.train'} names {', '.join(map(repr, agents))}"
        for name, agents in missing.items()
        if agents
    )
    what = f"{names}, but the step's calls were made by {seen}"
    if all(missing[name] == list(agents) for name, agents in wanted.items()):
        raise AgentError(
            what, cure="Correct the names; they are those `spangrad explain ROLLOUT` shows beside each call"
        )
    return what


def unlinked_work(collection: Collection) -> str:
    """How often rules were met by work whose call is not known, as a sentence; empty when never."""
    count = sum(result.unlinked for result in collection.results)
    if not count:
        return ""
    return f"rewards.rules were met {count} times by work of which no call is known; that gave no reward"


def missing_rewards(weights: RewardWeights, results: Sequence[RolloutResult], rules: Sequence[Rule] = ()) -> str:
    """Which of the rewards with a weight came in none of the rollouts that succeeded, as a sentence; empty when all did.

    Those of `rules` need not come: that nothing went wrong is no news.
    """
    rewarded = [result for result in results if result.status is RolloutStatus.SUCCEEDED]
    given = {reward.name for result in rewarded for reward in result.rewards}
    missing = sorted(weights.by_name.keys() - given - {rule.name for rule in rules})
    if not missing or not rewarded:
        return ""
    names, there = (", ".join(map(repr, some)) for some in (missing, sorted(given)))
    return f"rewards.weights names {names}, but no rollout had such a reward; there were {there}"
