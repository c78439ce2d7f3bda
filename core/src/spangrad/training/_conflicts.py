"""Settings that are fine one by one, but contradict each other or would do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from spangrad.lightningrl import AgentShare, CreditAssigner, Discounted, GiGPO, LightningRL, Sum
from spangrad.training._config import TrainConfig
from spangrad.training._reward_conflicts import negative_reward_conflicts, reward_conflicts

Problem = tuple[tuple[object, ...], str]
"""The key that is wrong, and what is wrong with it."""


def conflicts(config: TrainConfig, *, tasks: int | None, algorithm: LightningRL | None) -> Iterator[Problem]:
    """Those of a training run; what the loss has to say is elsewhere.

    Args:
        config: the settings.
        tasks: how many there are to train on; None where they could not be read.
        algorithm: None where it could not be made.
    """
    yield from _step_conflicts(config, tasks)
    yield from reward_conflicts(config)
    if algorithm is not None:
        yield from credit_conflicts(config, algorithm.credit)
        if algorithm.estimator.requirements.no_losses:
            yield from negative_reward_conflicts(config)
    if config.policy.endpoint is not None and config.warm_start is not None:
        yield ("warm_start",), "the endpoint would not see the warm-started model; it would do nothing to the rollouts"
    if config.algorithm.per_agent and len(config.trained_agents or ()) == 1:
        yield ("algorithm", "per_agent"), "policy.train names one agent only; it would do nothing"
    if config.evaluation.every and not config.tasks.heldout:
        yield ("evaluation", "every"), "there is no [tasks.heldout] to evaluate on; it would do nothing"
    for key in ("endpoint_model", "endpoint_key_env", "endpoint_prompts"):
        if key in config.policy.model_fields_set and config.policy.endpoint is None:
            yield ("policy", key), "there is no endpoint; it would do nothing"
    if config.policy.endpoint_prompts == "tokens" and config.policy.endpoint_model is None:
        yield ("policy", "endpoint_prompts"), "tokens are sampled by one model; name it with policy.endpoint_model"


def _step_conflicts(config: TrainConfig, tasks: int | None) -> Iterator[Problem]:
    training = config.training
    if tasks is not None and training.tasks_per_step > tasks:
        key = ("training", "tasks_per_step")
        yield key, f"a step takes {training.tasks_per_step} tasks, but there are only {tasks}"
    if training.updates_per_step > training.tasks_per_step:
        yield ("training", "updates_per_step"), "more updates than groups to share out among them"
    if training.refill_rounds and training.tasks_per_step == tasks:
        yield ("training", "refill_rounds"), "a step takes all tasks there are, so no other could be drawn"
    bound = config.algorithm.max_staleness
    if training.overlap and bound is not None and bound < training.updates_per_step:
        what = f"with overlap a call is answered by a policy up to {training.updates_per_step} versions older; raise it"
        yield ("algorithm", "max_staleness"), what
    if training.overlap and training.steps < 2:  # noqa: PLR2004 - there is no next step then
        yield ("training", "overlap"), "there is no step after the first; it would do nothing"


def credit_conflicts(config: TrainConfig, credit: CreditAssigner) -> Iterator[Problem]:
    """Options of the credit assigner, or of the parts of a sum, that would do nothing."""
    key = ("algorithm", "credit")
    trained = config.trained_agents
    for part in _parts(credit):
        if isinstance(part, AgentShare) and trained is not None:
            for problem in _share_conflicts(part, trained):
                yield key, problem
        if isinstance(part, GiGPO) and part.units == "rollout" and config.algorithm.statistics == "call":
            yield key, 'algorithm.statistics = "call" counts every call; units = "rollout" would do nothing'
        if isinstance(part, Discounted) and part.gamma == 1:
            yield key, "discounted with gamma = 1 discounts nothing; that is return_to_go, with a better baseline"


def _share_conflicts(credit: AgentShare, trained: frozenset[str]) -> Iterator[str]:
    if without := sorted(trained - credit.shares.keys()):
        yield f"no share for the agent {', '.join(map(repr, without))}, whose calls are trained on; give it one, or 0"
    if untrained := sorted(credit.shares.keys() - trained):
        yield f"the calls of {', '.join(map(repr, untrained))} are not trained on; a share would do nothing"
    if not without and not any(credit.shares.get(agent) for agent in trained):
        yield "the share of every agent that is trained is 0; there would be nothing to learn"


def _parts(credit: CreditAssigner) -> Iterator[CreditAssigner]:
    """The assigner, or those that a sum is made of."""
    if isinstance(credit, Sum):
        for part, _ in credit.of:
            yield from _parts(part)
    else:
        yield credit
