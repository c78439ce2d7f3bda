"""Sources of rewards that contradict each other or other settings, or would do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from spangrad.rollouts import OVERLONG
from spangrad.training._config import JudgeTable, TrainConfig
from spangrad.transitions import FAILURE_REWARD, Treatment

Problem = tuple[tuple[object, ...], str]
"""The key that is wrong, and what is wrong with it."""


def reward_conflicts(config: TrainConfig) -> Iterator[Problem]:
    """Those of the table [rewards]."""
    table = config.rewards
    if table.evaluator is None and table.evaluator_processes > 1:
        yield ("rewards", "evaluator_processes"), "there is no rewards.evaluator; it would do nothing"
    for name in ("check", "judge"):
        if table.weights and getattr(table, name) is not None and name not in table.weights:
            yield ("rewards", "weights"), f"no weight for {name!r}, which rewards.{name} gives every rollout"
    agents = config.trained_agents
    for index, rule in enumerate(table.rules):
        if rule.agent is not None and agents is not None and rule.agent not in agents:
            what = f"the calls of {rule.agent!r} are not trained on; their rewards would do nothing"
            yield ("rewards", "rules", index, "agent"), what
    yield from _failure_conflicts(config)
    if table.judge is not None:
        yield from _judge_conflicts(config, table.judge)


def _failure_conflicts(config: TrainConfig) -> Iterator[Problem]:
    """What contradicts how failures and length are to be rewarded."""
    weights, judge = config.rewards.weights, config.rewards.judge
    for kind, policy in config.failures.policies().by_kind.items():
        if policy.treatment is Treatment.PENALISE and weights and FAILURE_REWARD not in weights:
            yield ("failures", kind.value), f"rewards.weights has no weight for {FAILURE_REWARD!r}, the penalty's name"
    if config.rewards.overlong is not None and weights and OVERLONG not in weights:
        yield ("rewards", "overlong"), f"rewards.weights has no weight for {OVERLONG!r}"
    if config.failures.groups == "refill" and judge is not None and judge.relative:
        yield ("failures", "groups"), "rewards.judge compares a group once; rollouts added later could not be judged"


def negative_reward_conflicts(config: TrainConfig) -> Iterator[Problem]:
    """Rewards below 0, which an estimator that takes no return below 0 would meet as soon as a rollout has nothing else."""
    table, estimator = config.rewards, config.algorithm.estimator.name

    def taken_off(name: str, reward: float) -> bool:
        return reward * (table.weights.get(name, 0.0) if table.weights else 1.0) < 0

    why = f"{estimator} takes no return below 0, and a rollout with no other reward would have one"
    for kind, policy in config.failures.policies().by_kind.items():
        if policy.treatment is Treatment.PENALISE and taken_off(FAILURE_REWARD, policy.reward):
            yield ("failures", kind.value, "reward"), f"{why}; 0 counts such a rollout as worth nothing"
    if table.overlong is not None and taken_off(OVERLONG, -table.overlong.penalty):
        yield ("rewards", "overlong"), why
    for index, rule in enumerate(table.rules):
        if rule.reward is not None and taken_off(rule.reward_name, rule.reward):
            yield ("rewards", "rules", index, "reward"), why


def _judge_conflicts(config: TrainConfig, judge: JudgeTable) -> Iterator[Problem]:
    if judge.relative and config.training.rollouts_per_task == 1:
        what = "there is nothing to compare with training.rollouts_per_task = 1"
        yield ("rewards", "judge", "relative"), what
    policy = config.policy
    if judge.endpoint is not None and policy.endpoint is not None:
        same_server = judge.endpoint.rstrip("/") == policy.endpoint.rstrip("/")
        names = policy.aliases if policy.endpoint_model is None else [policy.endpoint_model]
        if same_server and judge.model in names:
            what = "this is the model of policy.endpoint, which would judge its own answers; take another"
            yield ("rewards", "judge", "model"), what
