"""The live parts of a run: backend, store, gateway and runner, opened together and closed in the right order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spangrad.backend import Backend
from spangrad.errors import ConfigError
from spangrad.gateway import EndpointEngine, Engine, Gateway, Route, RouteTable, TokenEngine
from spangrad.rollouts import Runner
from spangrad.store import Store, open_store
from spangrad.training._preparation import Preparation
from spangrad.training._run_folder import RunFolder

POLICY = "policy"
"""Name of the one policy that is trained."""


@dataclass(frozen=True)
class Session:
    """Everything that is running."""

    preparation: Preparation
    folder: RunFolder
    backend: Backend
    engine: Engine
    store: Store
    gateway: Gateway
    runner: Runner


@asynccontextmanager
async def open_session(
    preparation: Preparation, open_folder: Callable[[], RunFolder], *, port: int = 0
) -> AsyncIterator[Session]:
    """Loads the model and starts everything; closes all of it when the block ends, however it ends.

    Args:
        preparation: the checked run.
        open_folder: gives the run's folder; called once the model is loaded, so that a run that cannot start leaves none.
        port: where the gateway listens; 0 takes a free port.

    Raises:
        StoreError, GatewayError, ModelNotFoundError: a part cannot start.
    """
    config = preparation.config
    backend = preparation.factory.create(preparation.backend_options, seed=config.seed)
    try:
        engine = _engine(preparation, backend)
        folder = open_folder()
        folder.write_settings(preparation.settings())
        store = open_store(folder.store)
        try:
            routes = RouteTable([Route(alias, engine, POLICY) for alias in config.policy.aliases])
            with Gateway(store, routes, port=port) as gateway:
                runner = Runner(
                    preparation.agent,
                    preparation.reward,
                    gateway,
                    store,
                    concurrency=config.rollouts.concurrency,
                    timeout=config.rollouts.timeout,
                    retries=config.rollouts.retries,
                )
                with preparation.plugins.attached(), runner:
                    yield Session(preparation, folder, backend, engine, store, gateway, runner)
        finally:
            store.close()
    finally:
        await backend.close()


def _engine(preparation: Preparation, backend: Backend) -> Engine:
    policy = preparation.config.policy
    if policy.endpoint is None:
        return TokenEngine(backend.sampler, backend.chat_format, name=backend.name)
    key = os.environ.get(policy.endpoint_key_env, "") if policy.endpoint_key_env else ""
    if policy.endpoint_key_env and not key:
        raise ConfigError(
            f"The environment variable {policy.endpoint_key_env} named by policy.endpoint_key_env is not set"
        )
    return EndpointEngine(policy.endpoint, model=policy.endpoint_model, api_key=key or None)
