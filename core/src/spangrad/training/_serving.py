"""Serving a policy to programs of their own, which open rollouts over HTTP."""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from spangrad.errors import ConfigError
from spangrad.gateway import Address
from spangrad.plugins import Plugins
from spangrad.store import RolloutStatus, Store
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._preparation import PolicyPreparation, checked_parts
from spangrad.training._problems import Problems
from spangrad.training._run import stop_on_signal
from spangrad.training._run_folder import RunFolder
from spangrad.training._session import Listening, Serving, open_serving


def prepare_serving(loaded: LoadedConfig, plugins: Plugins) -> PolicyPreparation:
    """Checks what serving a policy needs, without loading a model; agent, reward and tasks are not looked at.

    Raises:
        ConfigError: wrong settings; every problem found is in the one message.
        PluginError: the backend is not usable.
    """
    problems = Problems(loaded)
    parts = checked_parts(loaded, plugins, problems)
    problems.check()
    if parts.factory is None:
        raise AssertionError("what is missing is a problem")
    return PolicyPreparation(loaded=loaded, plugins=plugins, factory=parts.factory, backend_options=parts.options)


def checked_listening(host: str, port: int, key: str | None) -> Listening:
    """Where a gateway is to listen.

    Args:
        host: an address of this machine. Beyond the loopback address every call needs a rollout's key.
        port: 0 takes a free one.
        key: the evaluator's key; made up when None.

    Raises:
        ConfigError: rollouts could not be told an address they can call, or the key cannot be sent in a header.
    """
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 - compared with, not bound to
        raise ConfigError(
            f"--host {host!r} is no address that others can call, and rollouts are told to call it",
            cure="Give this machine's own address, such as 192.168.0.2, or leave --host out for this machine alone",
        )
    if key is not None and not re.fullmatch(r"[!-~]{8,}", key):
        raise ConfigError(
            "--key must be at least 8 printable ASCII characters without spaces", cure="Leave it out to get a good one"
        )
    return Listening(Address(host, port), key or secrets.token_hex(20), allow_anonymous=_is_loopback(host))


async def serve(
    preparation: PolicyPreparation,
    open_folder: Callable[[], RunFolder],
    listening: Listening,
    *,
    on_ready: Callable[[Serving], None],
) -> tuple[RunFolder, int]:
    """Serves until SIGINT or SIGTERM; a rollout still open then is recorded as lost.

    Args:
        preparation: of `prepare_serving`.
        open_folder: gives the run's folder; called once the model is loaded.
        listening: where.
        on_ready: called when calls are answered.

    Returns:
        The run's folder, and how many rollouts are recorded in it.

    Raises:
        SpangradError: it cannot start.
    """
    with stop_on_signal() as stop:
        async with open_serving(preparation, open_folder, listening) as serving:
            on_ready(serving)
            await stop.wait()
            _end_open_rollouts(serving.store)
            return serving.folder, serving.store.counts()["rollouts"]


def _is_loopback(host: str) -> bool:
    """Whether only this machine itself reaches the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _end_open_rollouts(store: Store) -> None:
    for record in store.rollouts(status=RolloutStatus.RUNNING):
        error = "The gateway was stopped before the rollout ended"
        store.save_rollout(replace(record, status=RolloutStatus.LOST, error=error, finished_at=time.time()))
