"""The live parts of a run: backend, store, gateway and runner, opened together and closed in the right order."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from spangrad.backend import Backend
from spangrad.gateway import Address, Engine, Gateway
from spangrad.rollouts import Runner
from spangrad.store import FAILURES_NOTE, REWARD_WEIGHTS_NOTE, Store, open_store
from spangrad.training._lost import declare_lost
from spangrad.training._policies import Routing
from spangrad.training._preparation import PolicyPreparation, Preparation
from spangrad.training._run_folder import RunFolder


@dataclass(frozen=True)
class Serving:
    """Policies that answer calls, and where the calls are recorded."""

    folder: RunFolder
    backend: Backend
    engines: Mapping[str, Engine]
    """By policy."""
    store: Store
    gateway: Gateway


@dataclass(frozen=True)
class Session(Serving):
    """Everything that is running."""

    preparation: Preparation
    runner: Runner

    @property
    def max_sequence(self) -> int:
        """Most tokens of prompt and action together that all learners take."""
        return min(policy.learner.max_sequence for policy in self.backend.policies.values())

    @property
    def versions(self) -> dict[str, int]:
        """Of each policy as it has been trained so far."""
        return {name: policy.version for name, policy in self.backend.policies.items()}


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway listens and who may call it."""

    address: Address = field(default_factory=Address)
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
    backend = preparation.create_backend()
    try:
        routing = Routing.of(preparation.config, backend)
        folder = open_folder()
        with ExitStack() as undo:
            if folder.new:  # never an older run's, whatever it lacks
                undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
            with folder.in_use():
                folder.write_settings(preparation.settings())
                store = open_store(folder.store)
                try:
                    declare_lost(store)
                    store.set_note(REWARD_WEIGHTS_NOTE, dict(preparation.config.rewards.weights))
                    store.set_note(FAILURES_NOTE, preparation.config.failures.policies().treatments)
                    with _gateway(routing, store, listening) as gateway:
                        undo.pop_all()
                        yield Serving(folder, backend, routing.engines, store, gateway)
                finally:
                    store.close()
    finally:
        await backend.close()


@asynccontextmanager
async def open_session(preparation: Preparation, open_folder: Callable[[], RunFolder]) -> AsyncIterator[Session]:
    """Serves the model and gets ready to run the agent; closes all of it when the block ends, however it ends.

    Args:
        preparation: the checked run.
        open_folder: as for `open_serving`.

    Raises:
        RunFolderError, StoreError, GatewayError, ModelNotFoundError: a part cannot start.
    """
    table = preparation.config.rollouts
    async with open_serving(preparation, open_folder, Listening(preparation.address)) as s:
        runner = Runner(
            preparation.agent,
            preparation.judges.asking(f"{s.gateway.base_url}/v1", s.gateway.evaluator_key),
            s.gateway,
            s.store,
            concurrency=table.concurrency,
            timeout=table.timeout,
            failures=preparation.failures,
        )
        with preparation.plugins.attached(), runner:
            yield Session(s.folder, s.backend, s.engines, s.store, s.gateway, preparation, runner)


def _gateway(routing: Routing, store: Store, listening: Listening) -> Gateway:
    return Gateway(
        store,
        routing.table,
        address=listening.address,
        evaluator_key=listening.key,
        allow_anonymous=listening.allow_anonymous,
    )
