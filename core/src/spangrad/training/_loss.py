"""The loss a train.toml asks for, and whether everything it says about it would have an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar, cast, get_args

from spangrad.backend import CORRECTIONS, LOSSES, Capabilities, CriticSettings, KlForm, KlTerm, LossSettings
from spangrad.errors import ConfigError
from spangrad.lightningrl import configured
from spangrad.training._config import NamedTable, TrainConfig
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._problems import Problems

T = TypeVar("T")
Problem = tuple[tuple[str, ...], str]
"""The key that is wrong, and what is wrong with it."""


def loss_settings(loaded: LoadedConfig, problems: Problems | None = None) -> LossSettings:
    """The loss of the table [algorithm].

    Args:
        loaded: the settings.
        problems: gets unknown names and options, and values that cannot be; the loss goes without them.

    Raises:
        ConfigError: where nobody gathers problems, there are some.
    """
    if problems is None:
        problems = Problems(loaded)
        loss = loss_settings(loaded, problems)
        problems.check()
        return loss
    table = loaded.config.algorithm
    loss = LossSettings(entropy_bonus=table.entropy_bonus)
    with problems.at("algorithm", "loss"):
        loss = replace(loss, policy=_named("loss", table.loss, LOSSES))
    with problems.at("algorithm", "kl"):
        kl = table.kl
        if kl is not None:
            term = configured("KL term", kl.name, partial(KlTerm, cast("KlForm", kl.name)), kl.options)
            loss = replace(loss, kl=term)
    with problems.at("algorithm", "critic"):
        loss = replace(loss, critic=configured("table", "critic", CriticSettings, table.critic or {}))
    corrections = []
    for index, correction in enumerate(table.corrections):
        with problems.at("algorithm", "corrections", index):
            corrections.append(_named("correction", correction, CORRECTIONS))
    with problems.at("algorithm", "corrections"):
        return replace(loss, corrections=tuple(corrections))
    return loss


def proximal_policy(config: TrainConfig) -> Literal["sampler", "step_start"]:
    """What the ratio of the policy loss compares with."""
    table = config.algorithm
    if table.proximal is not None:
        return table.proximal
    sampled_by_these_weights = not _older_samples(config) and config.training.updates_per_step == 1
    return "step_start" if sampled_by_these_weights or table.corrections else "sampler"


def loss_conflicts(loaded: LoadedConfig, capabilities: Capabilities, *, may_mismatch: bool) -> list[Problem]:
    """What of the loss the backend does not honour, what contradicts something else, and what would do nothing.

    Args:
        loaded: settings whose `loss_settings` are sound.
        capabilities: of the backend.
        may_mismatch: whether its sampler and learner may differ with the same weights.
    """
    config = loaded.config
    situation = _Situation(config, loss_settings(loaded), mismatch=may_mismatch)
    return [*_not_honoured(config, capabilities), *situation.idle(), *situation.unusable()]


class _Situation:
    """How the updates of these settings stand to the policy that sampled."""

    def __init__(self, config: TrainConfig, loss: LossSettings, *, mismatch: bool) -> None:
        sampling = config.sampling
        self._table = config.algorithm
        self._loss = loss
        self._older = _older_samples(config)
        self._several = config.training.updates_per_step > 1
        self._proximal = proximal_policy(config)
        self._by_p = sampling.top_p < 1
        self._truncated = self._by_p or sampling.top_k > 0
        self._differs = self._older or mismatch
        """Whether the weights at the start of the step may give other log-probabilities than were recorded."""

    def idle(self) -> Iterator[Problem]:
        """What would do nothing."""
        policy, table = self._loss.policy, self._table
        if table.proximal is not None and not policy.uses_ratio:
            yield ("algorithm", "proximal"), f"the loss {policy.name} has no ratio; it would do nothing"
        elif table.proximal is not None and not self._differs and not self._truncated:
            if self._several or table.proximal == "sampler":
                yield ("algorithm", "proximal"), "the sampler has the weights of the step's start; it would do nothing"
        elif policy.uses_ratio and not self._several and self._proximal == "step_start":
            yield from self._ratio_of_one()
        if table.max_staleness is not None and not self._older:
            key = ("algorithm", "max_staleness")
            yield key, "every call is answered by the present policy; it would do nothing"
        if table.corrections and not self._differs and not (self._several and not policy.uses_ratio):
            yield ("algorithm", "corrections"), "the sampler has the weights of the step's start; they would do nothing"

    def _ratio_of_one(self) -> Iterator[Problem]:
        """Settings of a ratio that is 1 in every update."""
        key, table = ("algorithm", "loss"), self._table.loss
        why = "with one update per step, compared with the weights at its start, every ratio is 1"
        if table.options:
            yield key, f"{why}; {', '.join(sorted(table.options))} would do nothing"
        elif table.name != "ppo_clip":
            yield key, f"{why}, and {table.name} gives what reinforce gives; set training.updates_per_step to 2 or more"

    def unusable(self) -> Iterator[Problem]:
        """What needs recorded log-probabilities that there are not."""
        with_ratio = self._loss.policy.uses_ratio
        if self._table.corrections and with_ratio and self._proximal == "sampler":
            key = ("algorithm", "corrections")
            yield key, 'the ratio compares with the sampler already; they need proximal = "step_start"'
        compares = bool(self._table.corrections) or (with_ratio and self._proximal == "sampler")
        if compares and self._truncated:
            key = ("sampling", "top_p" if self._by_p else "top_k")
            cure = "" if self._table.corrections else ', or set algorithm.proximal = "step_start"'
            yield key, f"the loss compares with the sampler's whole distribution, which this cuts; leave it out{cure}"


def _older_samples(config: TrainConfig) -> bool:
    """Whether the policy that sampled may be an older one than that at the start of the step."""
    return config.policy.endpoint is not None or config.training.overlap


def _not_honoured(config: TrainConfig, capabilities: Capabilities) -> Iterator[Problem]:
    """What the backend cannot do."""
    table, backend = config.algorithm, f"the backend {config.backend}"
    if table.loss.name in LOSSES and table.loss.name not in capabilities.losses:
        yield ("algorithm", "loss"), f"{backend} knows the losses {', '.join(sorted(capabilities.losses))}"
    if table.kl is not None and not capabilities.kl_forms:
        yield ("algorithm", "kl"), f"{backend} has no reference policy; it would do nothing"
    elif table.kl is not None and table.kl.name in get_args(KlForm) and table.kl.name not in capabilities.kl_forms:
        yield ("algorithm", "kl"), f"{backend} knows the KL terms {', '.join(sorted(capabilities.kl_forms))}"
    if table.entropy_bonus and not capabilities.entropy_bonus:
        yield ("algorithm", "entropy_bonus"), f"{backend} has no entropy term; it would do nothing"
    unknown = sorted(
        ({correction.name for correction in table.corrections} & CORRECTIONS.keys()) - capabilities.corrections
    )
    if unknown:
        known = ", ".join(sorted(capabilities.corrections)) or "none"
        yield ("algorithm", "corrections"), f"{backend} knows not {', '.join(unknown)} (known: {known})"
    if not capabilities.decoupled and config.training.updates_per_step > 1 and proximal_policy(config) == "step_start":
        yield ("algorithm", "proximal"), f"{backend} does not compute log-probabilities of the step's start"


def _named(noun: str, table: NamedTable, known: Mapping[str, Callable[..., T]]) -> T:
    """What the known factory of that name makes of the table's options."""
    if table.name not in known:
        raise ConfigError(
            f"Unknown {noun} {table.name!r} (known: {', '.join(known)})", cure="Choose one of the known ones"
        )
    return configured(noun, table.name, known[table.name], table.options)
