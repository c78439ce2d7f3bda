"""From a train.toml to everything a run needs except the model: all that can be wrong is found here, before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from spangrad.backend import Backend, BackendFactory, LossSettings
from spangrad.errors import ConfigError
from spangrad.lightningrl import Grouping, LightningRL, Weighting, WeightingName, configured
from spangrad.plugins import Plugins
from spangrad.rollouts import OVERLONG, Agent, Judges, Task, load_agent
from spangrad.training._config import TrainConfig
from spangrad.training._credit import credit_assigner
from spangrad.training._critic import critic_conflicts
from spangrad.training._judges import load_judges
from spangrad.training._loaded_config import LoadedConfig, config_error, load_config
from spangrad.training._loss import Problem, loss_conflicts, loss_settings
from spangrad.training._policies import policy_conflicts, wants_initial
from spangrad.training._run_folder import RunSettings
from spangrad.training._tasks import digest, load_demonstrations, load_tasks
from spangrad.transitions import FAILURE_REWARD, FailurePolicies, RewardWeights, Treatment

T = TypeVar("T")


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
            config.backend, dict(self.backend_options), config.seed, names, config.model_dump(mode="json")
        )


@dataclass(frozen=True)
class Preparation(PolicyPreparation):
    """A checked run, ready to start."""

    algorithm: LightningRL
    agent: Agent
    judges: Judges
    tasks: tuple[Task, ...]
    heldout: Mapping[str, tuple[Task, ...]]
    demonstrations: tuple[Mapping[str, Any], ...]

    @property
    def loss(self) -> LossSettings:
        """The policy loss the settings ask for."""
        return loss_settings(self.loaded)

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


def prepare(path: Path, overrides: Sequence[str], plugins: Plugins) -> Preparation:
    """Reads and checks everything a train.toml names, without loading a model.

    Raises:
        ConfigError: wrong settings; every problem found is in the one message.
        PluginError: the backend, assigner or estimator asked for is not usable.
        AgentError, TaskError: the agent, reward function, tasks or demonstrations cannot be loaded.
    """
    loaded = load_config(path, overrides)
    config, folder = loaded.config, loaded.folder
    tasks = load_tasks(config.tasks.train, folder, key="tasks.train")
    factory, options, algorithm = checked_parts(
        loaded, plugins, lambda factory, options: _conflicts(loaded, factory, options, len(tasks))
    )
    return Preparation(
        loaded=loaded,
        plugins=plugins,
        factory=factory,
        backend_options=options,
        algorithm=algorithm,
        agent=load_agent(config.agent.run or config.agent.command or "", folder),
        judges=load_judges(loaded),
        tasks=tasks,
        heldout={
            name: load_tasks(source, folder, key=f"tasks.heldout.{name}")
            for name, source in config.tasks.heldout.items()
        },
        demonstrations=_demonstrations(config, folder),
    )


def checked_parts(
    loaded: LoadedConfig,
    plugins: Plugins,
    conflicts: Callable[[BackendFactory, Mapping[str, Any]], Sequence[str]] = lambda *_: (),
) -> tuple[BackendFactory, Mapping[str, Any], LightningRL]:
    """The backend's factory, its checked options, and the algorithm.

    Args:
        loaded: the settings.
        plugins: where names are looked up.
        conflicts: finds further problems, given the factory and its checked options.

    Raises:
        ConfigError: every problem found is in the one message.
        PluginError: the backend, assigner or estimator asked for is not usable.
    """
    factory = plugins.backends.get(loaded.config.backend)
    problems: list[str] = []
    options = _collect(problems, lambda: _checked_options(loaded, factory, problems)) or {}
    algorithm = _collect(problems, lambda: _algorithm(loaded, plugins, factory))
    problems += _located(loaded, policy_conflicts(loaded.config, loaded.config.backend, factory.capabilities))
    loss = _collect(problems, lambda: loss_settings(loaded))
    if algorithm is not None and loss is not None:
        problems += _located(loaded, critic_conflicts(loaded.config, algorithm, loss.critic))
    if loss is not None:
        problems += conflicts(factory, options)
    if problems or algorithm is None:
        raise config_error(loaded.path, problems)
    return factory, options, algorithm


def _collect(problems: list[str], part: Callable[[], T]) -> T | None:
    """The part's result; a ConfigError of it joins the list instead of ending the search for further ones."""
    try:
        return part()
    except ConfigError as error:
        problems.append(str(error))
        return None


def _checked_options(loaded: LoadedConfig, factory: BackendFactory, problems: list[str]) -> Mapping[str, Any]:
    try:
        return factory.check(loaded.backend_options)
    except ValidationError as error:
        problems += loaded.problems(error, within=(loaded.config.backend,))
        return {}


def _algorithm(loaded: LoadedConfig, plugins: Plugins, factory: BackendFactory) -> LightningRL:
    table = loaded.config.algorithm
    estimator, weighting = table.estimator, table.weighting
    with _blamed_on(loaded, "algorithm", "credit"):
        assigner = credit_assigner(table.credit, plugins, loaded.folder)
    with _blamed_on(loaded, "algorithm", "estimator"):
        comparison = configured(
            "advantage estimator", estimator.name, plugins.advantage_estimators.get(estimator.name), estimator.options
        )
    with _blamed_on(loaded, "algorithm", "weighting"):
        weights = configured(
            "weighting", weighting.name, partial(Weighting, cast("WeightingName", weighting.name)), weighting.options
        )
    algorithm = LightningRL(
        credit=assigner,
        estimator=comparison,
        weighting=weights,
        grouping=Grouping(table.per_agent, table.statistics),
        component_weights=RewardWeights(loaded.config.rewards.weights),
    )
    needs = comparison.requirements
    if loaded.config.training.refill_rounds and (needs.memory or needs.values or needs.among != "task"):
        with _blamed_on(loaded, "training", "refill_rounds"):
            raise ConfigError(
                f"{estimator.name} learns from groups of equal returns too, so none has to be replaced; it would do nothing",
                cure="Remove refill_rounds, or choose an estimator that compares rollouts of one task, such as grpo",
            )
    with _blamed_on(loaded, "algorithm", "estimator"):
        algorithm.check(
            rollouts_per_task=loaded.config.training.rollouts_per_task,
            estimator_levels=factory.capabilities.estimator_levels,
            values=factory.capabilities.values,
        )
    return algorithm


def _demonstrations(config: TrainConfig, folder: Path) -> tuple[Mapping[str, Any], ...]:
    if config.warm_start is None:
        return ()
    names = [policy.name for policy in config.trained]
    return load_demonstrations(config.warm_start.demonstrations, folder, policies=names)


def _one_agent(config: TrainConfig) -> bool:
    """Whether the calls of one agent are all that is trained on."""
    agents = [policy.agents for policy in config.trained]
    return None not in agents and len({name for names in agents for name in names or ()}) == 1


@contextmanager
def _blamed_on(loaded: LoadedConfig, *key: str) -> Iterator[None]:
    """Errors of the block name the setting and its place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{loaded.where(*key)}: {'.'.join(key)}: {error.what}", cure=error.cure) from error


def _conflicts(loaded: LoadedConfig, factory: BackendFactory, options: Mapping[str, Any], tasks: int) -> list[str]:
    """Settings that are fine one by one, but contradict each other or would do nothing."""
    config = loaded.config
    training = config.training
    found: list[Problem] = []
    if config.policy.endpoint is not None and config.warm_start is not None:
        found.append(
            (("warm_start",), "the endpoint would not see the warm-started model; it would do nothing to the rollouts")
        )
    if training.tasks_per_step > tasks:
        found.append(
            (
                ("training", "tasks_per_step"),
                f"a step takes {training.tasks_per_step} tasks, but there are only {tasks}",
            )
        )
    if training.updates_per_step > training.tasks_per_step:
        found.append((("training", "updates_per_step"), "more updates than groups to share out among them"))
    if training.refill_rounds and training.tasks_per_step == tasks:
        found.append((("training", "refill_rounds"), "a step takes all tasks there are, so no other could be drawn"))
    found += _failure_conflicts(config)
    bound = config.algorithm.max_staleness
    if training.overlap and bound is not None and bound < training.updates_per_step:
        what = f"with overlap a call is answered by a policy up to {training.updates_per_step} versions older; raise it"
        found.append((("algorithm", "max_staleness"), what))
    if training.overlap and training.steps < 2:  # noqa: PLR2004 - there is no next step then
        found.append((("training", "overlap"), "there is no step after the first; it would do nothing"))
    if config.algorithm.per_agent and _one_agent(config):
        found.append((("algorithm", "per_agent"), "policy.train names one agent only; it would do nothing"))
    if config.evaluation.every and not config.tasks.heldout:
        found.append((("evaluation", "every"), "there is no [tasks.heldout] to evaluate on; it would do nothing"))
    found += [
        (("policy", key), "there is no endpoint; it would do nothing")
        for key in ("endpoint_model", "endpoint_key_env")
        if getattr(config.policy, key) is not None and config.policy.endpoint is None
    ]
    found += loss_conflicts(loaded, factory.capabilities, may_mismatch=not options or factory.may_mismatch(options))
    return _located(loaded, found)


def _located(loaded: LoadedConfig, found: Iterable[Problem]) -> list[str]:
    """The problems with the settings' names and places."""
    return [f"{loaded.where(*key)}: {'.'.join(key)}: {problem}" for key, problem in found]


def _failure_conflicts(config: TrainConfig) -> list[Problem]:
    """What contradicts how failures and length are to be rewarded."""
    weights, judge = config.rewards.weights, config.rewards.judge
    found: list[Problem] = [
        (("failures", kind.value), f"rewards.weights has no weight for {FAILURE_REWARD!r}, the penalty's name")
        for kind, policy in config.failures.policies().by_kind.items()
        if policy.treatment is Treatment.PENALISE and weights and FAILURE_REWARD not in weights
    ]
    if config.rewards.overlong is not None and weights and OVERLONG not in weights:
        found.append((("rewards", "overlong"), f"rewards.weights has no weight for {OVERLONG!r}"))
    if config.failures.groups == "refill" and judge is not None and judge.relative:
        found.append(
            (("failures", "groups"), "rewards.judge compares a group once; rollouts added later could not be judged")
        )
    return found
