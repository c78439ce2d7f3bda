"""Where in an agent code is running, as the hooks of a framework know it: asked at the moment a request is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.sdk.trace import Span


@dataclass(frozen=True, slots=True)
class CallSite:
    """A piece of an agent's work that is under way."""

    span: Span
    """The framework's innermost open piece of work; the span of a call made there goes below it."""
    agent: str | None = None
    """The agent it belongs to; None when the framework has named none."""


Probe = Callable[[], CallSite | None]
"""Asks a framework where the running code is; None when the code is not the framework's. It must not raise."""

_lock = threading.Lock()
_probes: tuple[Probe, ...] = ()


def add_probe(probe: Probe) -> Callable[[], None]:
    """Adds a framework's probe; returns the function that takes it away again, which may be called twice."""
    global _probes  # noqa: PLW0603 - one list for the process, replaced whole so that readers need no lock
    with _lock:
        _probes = (*_probes, probe)

    def remove() -> None:
        global _probes  # noqa: PLW0603 - as above
        with _lock:
            _probes = tuple(other for other in _probes if other is not probe)

    return remove


def current_site() -> CallSite | None:
    """The innermost piece of work any framework has under way here; None when there is none.

    Where frameworks are nested (one's agent in a tool of another's), the one begun last is the innermost.
    """
    sites = (site for probe in _probes if (site := probe()) is not None and site.span.is_recording())
    return max(sites, key=lambda site: site.span.start_time or 0, default=None)
