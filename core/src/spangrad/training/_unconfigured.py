"""Settings of a command that is given no train.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spangrad.training._config import AgentTable, PolicyTable, RolloutsTable, TasksTable, TrainConfig, TrainingTable
from spangrad.training._loaded_config import LoadedConfig, config_error, resolved_model

ANY_MODEL = "*"
NOBODY = "-"
"""Stands where a train.toml must name an agent, while the rest is checked."""


def unconfigured(
    name: str,
    folder: Path,
    *,
    agent: str | Sequence[str] | None = None,
    reward: str | None = None,
    backend: str = "torch",
    policy: Mapping[str, Any],
    rollouts: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """The settings that a command's options stand for; the model answers to every name an agent asks for.

    Args:
        name: of the run's folder.
        folder: where modules and models are looked for.
        agent: "module:function" or a command line; None where programs of their own are the agents.
        reward: "module:function".
        backend: its name.
        policy: keys of the table [policy]; the options are called like them.
        rollouts: keys of the table [rollouts]; likewise.

    Raises:
        ConfigError: a value that cannot be; every problem found is in the one message.
    """
    try:
        config = TrainConfig(
            name=name,
            backend=backend,
            agent=_agent(agent or NOBODY, reward),
            tasks=TasksTable(train=""),
            policy=PolicyTable(aliases=[ANY_MODEL], **policy),
            rollouts=RolloutsTable(**(rollouts or {})),
            training=TrainingTable(steps=0),
        )
    except ValidationError as error:
        problems = [
            f"--{'-'.join(map(str, item['loc'])).replace('_', '-')}: {item['msg'].removeprefix('Value error, ')} "
            f"(got {item['input']!r})"
            for item in error.errors(include_url=False)
        ]
        raise config_error(Path(), problems) from error
    if agent is None:
        config = config.model_copy(update={"agent": AgentTable.model_construct()})
    model = resolved_model(config.policy.model, folder)
    return LoadedConfig(config=config, backend_options={"model": model}, folder=folder, path=Path("command line"))


def _agent(agent: str | Sequence[str], reward: str | None) -> AgentTable:
    if isinstance(agent, str):
        return AgentTable(command=agent, reward=reward)
    if len(agent) > 1 or ":" not in agent[0]:
        return AgentTable(command=list(agent), reward=reward)
    return AgentTable(run=agent[0], reward=reward)
