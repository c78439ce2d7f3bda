"""From the settings of rewards to those who give them."""

from __future__ import annotations

from collections.abc import Mapping

from spangrad.errors import ConfigError
from spangrad.rollouts import Judges, load_command, load_reward
from spangrad.rollouts.judging import Check, Evaluator, GroupJudge, JudgeSettings, ModelJudge, RewardSource
from spangrad.training._config import JudgeTable
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._problems import Problems
from spangrad.training._rules import load_rules
from spangrad.transitions import RewardWeights


def load_judges(loaded: LoadedConfig, problems: Problems, environ: Mapping[str, str]) -> Judges:
    """Everything that the settings name as giving rewards; nothing of it is started.

    Args:
        loaded: the settings.
        problems: gets what is wrong: a function or command that cannot be found, a key that is not there, a wrong rule.
        environ: the user's environment: what commands that judge inherit, and where the judge's key is.
    """
    table, folder = loaded.config.rewards, loaded.folder
    function = None
    with problems.at("agent", "reward"):
        function = load_reward(loaded.config.agent.reward, folder) if loaded.config.agent.reward else None
    sources: list[RewardSource] = []
    if table.evaluator is not None:
        with problems.at("rewards", "evaluator"):
            command = load_command(table.evaluator, folder, noun="evaluator")
            sources.append(Evaluator(command, processes=table.evaluator_processes, environ=environ))
    if table.check is not None:
        with problems.at("rewards", "check"):
            sources.append(Check(load_command(table.check, folder, noun="check"), environ))
    group = None
    if table.judge is not None:
        with problems.at("rewards", "judge", "key_env"):
            settings = _judge_settings(table.judge, environ)
            group = GroupJudge(settings) if table.judge.relative else None
            sources += [] if table.judge.relative else [ModelJudge(settings)]
    return Judges(
        function=function,
        sources=tuple(sources),
        group=group,
        weights=RewardWeights(table.weights),
        rules=load_rules(loaded, problems),
        overlong=None if table.overlong is None else table.overlong.as_overlong(),
    )


def _judge_settings(table: JudgeTable, environ: Mapping[str, str]) -> JudgeSettings:
    key = environ.get(table.key_env, "") if table.key_env else ""
    if table.key_env and not key:
        raise ConfigError(f"The environment variable {table.key_env} is not set")
    return JudgeSettings(
        table.endpoint, table.model or table.route or "", key, table.criteria, table.lowest, table.highest
    )
