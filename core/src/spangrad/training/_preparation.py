"""From a train.toml to everything a run needs except the model: all that can be wrong is found here, before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from spangrad.backend import Backend, BackendFactory, ChecksMachine, LossSettings
from spangrad.errors import BackendError
from spangrad.gateway import Address
from spangrad.lightningrl import Grouping, LightningRL, Weighting, WeightingName, configured
from spangrad.plugins import Plugins
from spangrad.rollouts import Agent, Judges, Task, clients_pointed_at, load_agent
from spangrad.training._config import TrainConfig
from spangrad.training._conflicts import conflicts
from spangrad.training._credit import credit_assigner
from spangrad.training._critic import critic_conflicts
from spangrad.training._judges import load_judges
from spangrad.training._loaded_config import LoadedConfig, read_config
from spangrad.training._loss import loss_conflicts, loss_settings
from spangrad.training._policies import policy_conflicts, wants_initial
from spangrad.training._problems import Problems
from spangrad.training._run_folder import RunSettings
from spangrad.training._tasks import digest, load_demonstrations, load_tasks
from spangrad.transitions import FailurePolicies, RewardWeights


@dataclass(frozen=True)
class PolicyPreparation:
    """A checked policy, ready to be served."""

    loaded: LoadedConfig
    plugins: Plugins
    factory: BackendFactory
    backend_options: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        """The settings."""
        return self.loaded.config

    def missing(self) -> str | None:
        """What this machine lacks to train so, with the cure; None where nothing is known to be missing."""
        if isinstance(self.factory, ChecksMachine):
            try:
                self.factory.require(self.backend_options)
            except BackendError as error:
                return str(error)
        return None

    def create_backend(self) -> Backend:
        """Loads the model.

        Raises:
            ModelNotFoundError: no such model.
            BackendError: it cannot be trained here.
        """
        names = [policy.name for policy in self.config.trained]
        initial = wants_initial(self.config)
        return self.factory.create(self.backend_options, seed=self.config.seed, policies=names, initial=initial)

    def settings(self) -> RunSettings:
        """What the run's folder keeps of all this."""
        config = self.config
        names = [policy.name for policy in config.trained]
        return RunSettings(
            config.backend,
            dict(self.backend_options),
            config.seed,
            names,
            config.model_dump(mode="json"),
            tokenizer_known=config.policy.renders or "model" in config.policy.model_fields_set,
        )


@dataclass(frozen=True)
class Preparation(PolicyPreparation):
    """A checked run, ready to start."""

    algorithm: LightningRL
    loss: LossSettings
    agent: Agent
    judges: Judges
    tasks: tuple[Task, ...]
    heldout: Mapping[str, tuple[Task, ...]]
    demonstrations: tuple[Mapping[str, Any], ...]
    address: Address
    """Where the gateway will listen, reserved; modules of the user's have been told it when they were imported."""

    @property
    def failures(self) -> FailurePolicies:
        """What is done about rollouts that fail."""
        return self.config.failures.policies()

    def identity(self) -> dict[str, Any]:
        """What must not change between a run and its resumption: it decides which tasks a step sees."""
        training = self.config.training
        return {
            "seed": self.config.seed,
            "model": self.config.policy.model,
            "policies": [policy.name for policy in self.config.trained],
            "tasks": digest(self.tasks),
            "tasks_per_step": training.tasks_per_step,
            "rollouts_per_task": training.rollouts_per_task,
        }


def prepare(path: Path, overrides: Sequence[str], plugins: Plugins, *, port: int = 0) -> Preparation:
    """Reads and checks everything a train.toml names, without loading a model.

    Modules of the user's are imported with clients pointed at the gateway that is to come, so that a client they make
    at import reaches it.

    Args:
        path: the file.
        overrides: "table.key=value" each.
        plugins: where names are looked up.
        port: where the gateway will listen; 0 takes a free port.

    Raises:
        ConfigError: wrong settings, or an agent, function or file that cannot be loaded; every problem found is in the one
            message.
        GatewayError: the port is in use.
    """
    loaded, wrong = read_config(path, overrides)
    problems = Problems(loaded, wrong)
    address, environ = reserved(port), dict(os.environ)
    with clients_pointed_at(address.base_url):
        tasks, heldout = _tasks(loaded, problems)
        parts = checked_parts(loaded, plugins, problems)
        if not wrong:  # what is left of the settings may contradict itself for lack of the rest
            _find_conflicts(loaded, parts, problems, tasks=len(tasks) if tasks else None)
        agent = loaded_agent(loaded, problems)
        judges = load_judges(loaded, problems, environ)
        demonstrations = _demonstrations(loaded, problems)
    problems.check()
    if parts.factory is None or parts.algorithm is None or parts.loss is None or agent is None:
        raise AssertionError("what is missing is a problem")
    return Preparation(
        loaded=loaded,
        plugins=plugins,
        factory=parts.factory,
        backend_options=parts.options,
        algorithm=parts.algorithm,
        loss=parts.loss,
        agent=agent,
        judges=judges,
        tasks=tasks,
        heldout=heldout,
        demonstrations=demonstrations,
        address=address,
    )


def reserved(port: int) -> Address:
    """The address the gateway will have, settled before anything is imported that is to know it.

    Raises:
        GatewayError: the port is in use.
    """
    address = Address(port=port)
    address.reserve()
    return address


@dataclass(frozen=True, slots=True)
class CheckedParts:
    """What the settings name besides the user's own; None where there is a problem."""

    factory: BackendFactory | None
    options: Mapping[str, Any]
    """Of the backend, checked; empty where there is a problem."""
    algorithm: LightningRL | None
    loss: LossSettings | None


def checked_parts(loaded: LoadedConfig, plugins: Plugins, problems: Problems) -> CheckedParts:
    """The backend's factory, its checked options, the algorithm and the loss.

    Args:
        loaded: the settings.
        plugins: where names are looked up.
        problems: gets what is wrong.
    """
    factory, options = None, {}
    with problems.at("backend"):
        factory = plugins.backends.get(loaded.config.backend)
        options = dict(_checked_options(loaded, factory, problems))
    algorithm = _algorithm(loaded, plugins, factory, problems)
    if factory is not None:
        problems.extend(policy_conflicts(loaded.config, loaded.config.backend, factory.capabilities))
    before = len(problems)
    loss = loss_settings(loaded, problems)
    sound = len(problems) == before
    if algorithm is not None and sound:
        problems.extend(critic_conflicts(loaded.config, algorithm, loss.critic))
    return CheckedParts(factory, options, algorithm, loss if sound else None)


def loaded_agent(loaded: LoadedConfig, problems: Problems) -> Agent | None:
    """The agent; None, and a problem, where it cannot be loaded."""
    table = loaded.config.agent
    with problems.at("agent", "run" if table.run is not None else "command"):
        return load_agent(table.run or table.command or "", loaded.folder)
    return None


def _checked_options(loaded: LoadedConfig, factory: BackendFactory, problems: Problems) -> Mapping[str, Any]:
    try:
        return factory.check(loaded.backend_options)
    except ValidationError as error:
        problems.listed(loaded.problems(error, within=(loaded.config.backend,)))
        return {}


def _algorithm(
    loaded: LoadedConfig, plugins: Plugins, factory: BackendFactory | None, problems: Problems
) -> LightningRL | None:
    """The algorithm; None, and problems, where a part of it cannot be made."""
    table, rewards = loaded.config.algorithm, loaded.config.rewards
    estimator, weighting = table.estimator, table.weighting
    assigner = comparison = weights = None
    with problems.at("algorithm", "credit"):
        assigner = credit_assigner(table.credit, plugins, loaded.folder)
    with problems.at("algorithm", "estimator"):
        comparison = configured(
            "advantage estimator", estimator.name, plugins.advantage_estimators.get(estimator.name), estimator.options
        )
    with problems.at("algorithm", "weighting"):
        weights = configured(
            "weighting", weighting.name, partial(Weighting, cast("WeightingName", weighting.name)), weighting.options
        )
    if assigner is None or comparison is None or weights is None:
        return None
    algorithm = LightningRL(
        credit=assigner,
        estimator=comparison,
        weighting=weights,
        grouping=Grouping(table.per_agent, table.statistics),
        component_weights=RewardWeights(rewards.weights),
        names=(table.credit.name, estimator.name),
    )
    needs = comparison.requirements
    if loaded.config.training.refill_rounds and (needs.memory or needs.values or needs.among != "task"):
        what = (
            f"{estimator.name} learns from groups of equal returns too, so none has to be replaced; it would do nothing"
        )
        problems.add(("training", "refill_rounds"), what)
    if factory is not None:
        with problems.at("algorithm", "estimator"):
            algorithm.check(
                rollouts_per_task=loaded.config.training.rollouts_per_task,
                estimator_levels=factory.capabilities.estimator_levels,
                values=factory.capabilities.values,
            )
    return algorithm


def _tasks(loaded: LoadedConfig, problems: Problems) -> tuple[tuple[Task, ...], Mapping[str, tuple[Task, ...]]]:
    """Those to train on, and the held-out sets; without any where there is a problem."""
    table = loaded.config.tasks
    tasks: tuple[Task, ...] = ()
    with problems.at("tasks", "train"):
        tasks = load_tasks(table.train, loaded.folder, key="tasks.train")
    heldout = {}
    for name, source in table.heldout.items():
        with problems.at("tasks", "heldout", name):
            heldout[name] = load_tasks(source, loaded.folder, key=f"tasks.heldout.{name}")
    return tasks, heldout


def _demonstrations(loaded: LoadedConfig, problems: Problems) -> tuple[Mapping[str, Any], ...]:
    config = loaded.config
    if config.warm_start is None:
        return ()
    names = [policy.name for policy in config.trained]
    found: tuple[Mapping[str, Any], ...] = ()
    with problems.at("warm_start", "demonstrations"):
        found = load_demonstrations(config.warm_start.demonstrations, loaded.folder, policies=names)
    if "batch" in config.warm_start.model_fields_set and 0 < len(found) < config.warm_start.batch:
        what = f"a step takes {config.warm_start.batch} demonstrations, but there are only {len(found)}"
        problems.add(("warm_start", "batch"), what)
    return found


def _find_conflicts(loaded: LoadedConfig, parts: CheckedParts, problems: Problems, *, tasks: int | None) -> None:
    """Looks for settings that are fine one by one, but contradict each other or would do nothing."""
    problems.extend(conflicts(loaded.config, tasks=tasks, algorithm=parts.algorithm))
    factory = parts.factory
    if factory is not None and parts.loss is not None:
        mismatch = not parts.options or factory.may_mismatch(parts.options)
        problems.extend(loss_conflicts(loaded, factory.capabilities, may_mismatch=mismatch))


def settled_settings(preparation: Preparation, backend: Backend) -> list[str]:
    """What of the loss does nothing after all, now that the model is loaded and it is known how it computes, as sentences."""
    before = preparation.factory.may_mismatch(preparation.backend_options)
    if not before or backend.mismatch:
        return []
    found = loss_conflicts(preparation.loaded, preparation.factory.capabilities, may_mismatch=False)
    return [
        f"Sampler and learner turn out to compute alike, so {'.'.join(key)} has no effect: {problem}"
        for key, problem in found
    ]
