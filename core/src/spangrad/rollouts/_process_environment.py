"""Pointing the clients of this process at the gateway: while its agents are imported, and while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from spangrad.capture import URL_VARIABLE

_NO_KEY: Final = "no-key-needed"
"""Clients want some key; a rollout's own cannot stand here, because the process runs many rollouts."""


def without_proxy(gateway_url: str) -> dict[str, str]:
    """Variables that keep clients from sending requests for the gateway to the user's HTTP proxy."""
    host = urlsplit(gateway_url).hostname or ""
    present = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if host in present.split(","):
        return {}
    hosts = ",".join(filter(None, (present, host)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


@contextmanager
def clients_pointed_at(gateway_url: str) -> Iterator[None]:
    """During the block, clients that take their settings from the environment call the gateway; then all is as before."""
    url = f"{gateway_url}/v1"
    variables = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": _NO_KEY,
        URL_VARIABLE: gateway_url,
        **without_proxy(gateway_url),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
