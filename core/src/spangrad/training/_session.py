"""The live parts of a run: backend, store, gateway and runner, opened together and closed in the right order."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from spangrad.backend import Backend
from spangrad.errors import ConfigError
from spangrad.gateway import EndpointEngine, Engine, Gateway, Route, RouteTable, TokenEngine
from spangrad.rollouts import Runner
from spangrad.store import FAILURES_NOTE, REWARD_WEIGHTS_NOTE, Store, open_store
from spangrad.training._preparation import PolicyPreparation, Preparation
from spangrad.training._run_folder import RunFolder

POLICY = "policy"
"""Name of the one policy that is trained."""
ENDPOINT_VERSION = 0
"""Version of the policy that an endpoint serves: the one the run began with, for no update reaches it."""


@dataclass(frozen=True)
class Serving:
    """A policy that answers calls, and where they are recorded."""

    folder: RunFolder
    backend: Backend
    engine: Engine
    store: Store
    gateway: Gateway


@dataclass(frozen=True)
class Session(Serving):
    """Everything that is running."""

    preparation: Preparation
    runner: Runner


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway listens and who may call it."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    key: str | None = None
    """The evaluator's; made up when None."""
    allow_anonymous: bool = True
    """Clients on this machine need no key to call the model."""


@asynccontextmanager
async def open_serving(
    preparation: PolicyPreparation, open_folder: Callable[[], RunFolder], listening: Listening
) -> AsyncIterator[Serving]:
    """Loads the model and serves it; closes all of it when the block ends, however it ends.

    Args:
        preparation: the checked policy.
        open_folder: gives the run's folder; called once the model is loaded, so that a run that cannot start leaves none
            (nor one that cannot listen).
        listening: where the gateway listens.

    Raises:
        RunFolderError, StoreError, GatewayError, ModelNotFoundError: a part cannot start.
    """
    backend = preparation.factory.create(preparation.backend_options, seed=preparation.config.seed)
    try:
        engine = _engine(preparation, backend)
        folder = open_folder()
        with ExitStack() as undo:
            if folder.new:  # never an older run's, whatever it lacks
                undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
            with folder.in_use():
                folder.write_settings(preparation.settings())
                store = open_store(folder.store)
                try:
                    store.set_note(REWARD_WEIGHTS_NOTE, dict(preparation.config.rewards.weights))
                    store.set_note(FAILURES_NOTE, preparation.config.failures.policies().treatments)
                    with _gateway(preparation, engine, store, listening) as gateway:
                        undo.pop_all()
                        yield Serving(folder, backend, engine, store, gateway)
                finally:
                    store.close()
    finally:
        await backend.close()


@asynccontextmanager
async def open_session(
    preparation: Preparation, open_folder: Callable[[], RunFolder], *, port: int = 0
) -> AsyncIterator[Session]:
    """Serves the model and gets ready to run the agent; closes all of it when the block ends, however it ends.

    Args:
        preparation: the checked run.
        open_folder: as for `open_serving`.
        port: where the gateway listens; 0 takes a free port.

    Raises:
        RunFolderError, StoreError, GatewayError, ModelNotFoundError: a part cannot start.
    """
    table = preparation.config.rollouts
    async with open_serving(preparation, open_folder, Listening(port=port)) as s:
        runner = Runner(
            preparation.agent,
            preparation.judges,
            s.gateway,
            s.store,
            concurrency=table.concurrency,
            timeout=table.timeout,
            failures=preparation.failures,
        )
        with preparation.plugins.attached(), runner:
            yield Session(s.folder, s.backend, s.engine, s.store, s.gateway, preparation, runner)


def _gateway(preparation: PolicyPreparation, engine: Engine, store: Store, listening: Listening) -> Gateway:
    return Gateway(
        store,
        RouteTable([Route(alias, engine, POLICY) for alias in preparation.config.policy.aliases]),
        host=listening.host,
        port=listening.port,
        evaluator_key=listening.key,
        allow_anonymous=listening.allow_anonymous,
    )


def _engine(preparation: PolicyPreparation, backend: Backend) -> Engine:
    policy = preparation.config.policy
    if policy.endpoint is None:
        return TokenEngine(backend.sampler, backend.chat_format, name=backend.name)
    key = os.environ.get(policy.endpoint_key_env, "") if policy.endpoint_key_env else ""
    if policy.endpoint_key_env and not key:
        raise ConfigError(
            f"The environment variable {policy.endpoint_key_env} named by policy.endpoint_key_env is not set"
        )
    return EndpointEngine(
        policy.endpoint, model=policy.endpoint_model, api_key=key or None, policy_version=ENDPOINT_VERSION
    )
