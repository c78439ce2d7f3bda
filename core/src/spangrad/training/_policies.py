"""Which model answers what agents ask for: the policies that are trained, and models that are not."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spangrad.backend import Backend, Capabilities
from spangrad.errors import ConfigError
from spangrad.gateway import EndpointEngine, EndpointSampler, Engine, Route, RouteTable, TokenEngine
from spangrad.training._config import FixedRouteTable, TrainConfig

ENDPOINT_VERSION = 0
"""Version of the policy that an endpoint serves: the one the run began with, for no update reaches it."""
_INITIAL = "initial"


@dataclass(frozen=True)
class Routing:
    """The routes of a run's gateway, and the engines of its policies."""

    table: RouteTable
    engines: Mapping[str, Engine]
    """By policy."""

    @classmethod
    def of(cls, config: TrainConfig, backend: Backend) -> Routing:
        """Makes the engines.

        Raises:
            ConfigError: an API key that the settings name is not in the environment.
        """
        engines = {policy.name: _engine(config, backend, policy.name) for policy in config.trained}
        routes = [
            Route(alias, engines[policy.name], policy.name) for policy in config.trained for alias in policy.aliases
        ]
        initial = backend.initial
        frozen = (
            None if initial is None else TokenEngine(initial, backend.chat_format, name=f"{backend.name} {_INITIAL}")
        )
        for alias, table in config.routes.items():
            engine = frozen if table.frozen else _external(alias, table)
            if engine is None:
                raise AssertionError("the backend was asked for its initial model")
            routes.append(Route(alias, engine))
        return cls(RouteTable(routes), engines)


def wants_initial(config: TrainConfig) -> bool:
    """Whether the backend has to serve the model as it was loaded."""
    return any(route.frozen for route in config.routes.values())


def serving_versions(config: TrainConfig, backend: Backend) -> dict[str, int]:
    """Which version of each policy answers calls now."""
    outside = config.policy.endpoint is not None
    return {name: ENDPOINT_VERSION if outside else policy.version for name, policy in backend.policies.items()}


def policy_conflicts(
    config: TrainConfig, backend: str, capabilities: Capabilities
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Settings of policies and routes that contradict each other or the backend: a key, and what is wrong with it."""
    given = config.policy.model_fields_set
    for key in ("aliases", "train"):
        if config.policies and key in given:
            yield ("policy", key), f"there are [policies], which have {key} of their own; it would do nothing"
    if config.policies and config.policy.endpoint is not None:
        yield ("policy", "endpoint"), "it serves one policy, and there are [policies]"
    if len(config.policies) > 1 and not capabilities.several_policies:
        yield ("policies",), f"the backend {backend!r} trains one policy"
    if wants_initial(config) and not capabilities.initial:
        name = next(name for name, route in config.routes.items() if route.frozen)
        yield ("routes", name, "frozen"), f"the backend {backend!r} does not serve the model as it was loaded"
    yield from _alias_conflicts(config)
    judge = config.rewards.judge
    if judge is not None and judge.route is not None and judge.route not in config.routes:
        known = ", ".join(map(repr, config.routes)) or "none"
        yield ("rewards", "judge", "route"), f"there is no [routes] table {judge.route!r} (there are: {known})"


def _alias_conflicts(config: TrainConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Names that would be answered by two models."""
    places: dict[str, tuple[str, ...]] = {}
    aliases: Counter[str] = Counter()
    for policy in config.trained:
        key = ("policies", policy.name, "aliases") if config.policies else ("policy", "aliases")
        for alias in policy.aliases:
            aliases[alias] += 1
            places[alias] = key
    for alias in config.routes:
        aliases[alias] += 1
        places[alias] = ("routes", alias)
    for alias, count in aliases.items():
        if count > 1:
            yield places[alias], f"the name {alias!r} is given {count} times; who asks for it must get one model"


def _engine(config: TrainConfig, backend: Backend, policy: str) -> Engine:
    """What answers calls of a policy."""
    table = config.policy
    if table.endpoint is None:
        name = backend.name if not config.policies else f"{backend.name} {policy}"
        return TokenEngine(backend.policies[policy].sampler, backend.chat_format, name=name)
    key = _api_key(table.endpoint_key_env, "policy.endpoint_key_env")
    if table.endpoint_prompts == "messages" or table.endpoint_model is None:
        return EndpointEngine(table.endpoint, model=table.endpoint_model, api_key=key, policy_version=ENDPOINT_VERSION)
    sampler = EndpointSampler(
        table.endpoint,
        table.endpoint_model,
        key,
        context_length=backend.policies[policy].sampler.context_length,
        policy_version=ENDPOINT_VERSION,
    )
    return TokenEngine(sampler, backend.chat_format, name=sampler.url, on_close=sampler.close)


def _external(alias: str, table: FixedRouteTable) -> Engine:
    """An endpoint that nobody trains, so its token ids are not asked for: many servers refuse to be asked."""
    key = _api_key(table.key_env, f"routes.{alias}.key_env")
    return EndpointEngine(table.endpoint or "", model=table.model, api_key=key, ask_token_ids=False)


def _api_key(variable: str | None, setting: str) -> str | None:
    """The key in that environment variable; None where none is named."""
    if variable is None:
        return None
    if not (key := os.environ.get(variable, "")):
        raise ConfigError(f"The environment variable {variable} named by {setting} is not set")
    return key
