"""One HTTP client per event loop where the SDK shares one for the whole process.

A rollout of a plain function runs in a thread of its own, and `Runner.run_sync` gives each thread an event loop. A connection that
one loop opened is useless to the next, so with the shared client every other such run fails ("bound to a different event
loop", "Event loop is closed"). Clients that the program makes itself are its own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from agents.models import openai_provider

from spangrad.capture import current_scope

_CONNECTIONS = 1000  # openai's own default


class HTTPClients:
    """The clients, each as long as its loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def client(self, shared: Callable[[], Any]) -> Any:
        """The running loop's client; outside a rollout, or without a loop, the shared one.

        Args:
            shared: the SDK's own function.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return shared()
        if current_scope() is None:
            return shared()
        with self._lock:
            if loop not in self._clients:
                self._clients[loop] = _make()
            return self._clients[loop]


def _make() -> Any:
    """A client like the SDK's that keeps no idle connection: one would keep its loop, and a socket, alive for good."""
    names = vars(openai_provider)
    library = names.get("httpx2") or names["httpx"]  # the SDK changed over with openai 3
    make = names.get("DefaultAsyncHttpx2Client") or names["DefaultAsyncHttpxClient"]
    limits = library.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0)
    return make(limits=limits, verify=_certificates(library.create_ssl_context))


@cache
def _certificates(make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Read once: it takes longer than all the rest of a client."""
    return make()
