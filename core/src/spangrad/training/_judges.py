"""From the settings of rewards to those who give them."""

from __future__ import annotations

import os

from spangrad.errors import ConfigError
from spangrad.rollouts import Judges, load_command, load_reward
from spangrad.rollouts.judging import Check, Evaluator, GroupJudge, JudgeSettings, ModelJudge, RewardSource
from spangrad.training._config import JudgeTable
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._rules import load_rules
from spangrad.transitions import RewardWeights


def load_judges(loaded: LoadedConfig) -> Judges:
    """Everything that the settings name as giving rewards; nothing of it is started.

    Raises:
        AgentError: a reward function or command cannot be found.
        ConfigError: the judge's key is not there, a rule is wrong, or a number of processes would do nothing.
    """
    table, folder = loaded.config.rewards, loaded.folder
    function = loaded.config.agent.reward
    if table.evaluator is None and table.evaluator_processes > 1:
        what = "there is no rewards.evaluator; it would do nothing"
        raise ConfigError(f"{loaded.where('rewards', 'evaluator_processes')}: rewards.evaluator_processes: {what}")
    sources: list[RewardSource] = []
    if table.evaluator is not None:
        command = load_command(table.evaluator, folder, noun="evaluator")
        sources.append(Evaluator(command, processes=table.evaluator_processes))
    if table.check is not None:
        sources.append(Check(load_command(table.check, folder, noun="check")))
    settings = None if table.judge is None else _judge_settings(table.judge)
    relative = table.judge is not None and table.judge.relative
    if settings is not None and not relative:
        sources.append(ModelJudge(settings))
    return Judges(
        function=load_reward(function, folder) if function else None,
        sources=tuple(sources),
        group=GroupJudge(settings) if settings is not None and relative else None,
        weights=RewardWeights(table.weights),
        rules=load_rules(loaded),
        overlong=None if table.overlong is None else table.overlong.as_overlong(),
    )


def _judge_settings(table: JudgeTable) -> JudgeSettings:
    key = os.environ.get(table.key_env, "") if table.key_env else ""
    if table.key_env and not key:
        raise ConfigError(f"The environment variable {table.key_env} named by rewards.judge.key_env is not set")
    return JudgeSettings(
        table.endpoint, table.model or table.route or "", key, table.criteria, table.lowest, table.highest
    )
