"""Where in an agent code is running, as the hooks of a framework know it: asked at the moment a request is made."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.sdk.trace import Span

from spangrad import semconv
from spangrad.capture._scope import current_scope

_logger = logging.getLogger("spangrad.capture")


@dataclass(frozen=True, slots=True)
class CallSite:
    """A piece of an agent's work that is under way."""

    span: Span
    """The framework's innermost open piece of work; the span of a call made there goes below it."""
    agent: str | None = None
    """The agent it belongs to; None when the framework has named none."""


Probe = Callable[[], CallSite | None]
"""Asks a framework where the running code is; None when the code is not the framework's. It must not raise."""


@dataclass(eq=False, slots=True)
class _Added:
    """A probe, each time it was added."""

    probe: Probe
    failed: bool = False
    """It has raised, and that has been said."""


_lock = threading.Lock()
_probes: tuple[_Added, ...] = ()


def add_probe(probe: Probe) -> Callable[[], None]:
    """Adds a framework's probe; returns the function that takes it away again, which may be called twice."""
    global _probes  # noqa: PLW0603 - one list for the process, replaced whole so that readers need no lock
    added = _Added(probe)
    with _lock:
        _probes = (*_probes, added)

    def remove() -> None:
        global _probes  # noqa: PLW0603 - as above
        with _lock:
            _probes = tuple(other for other in _probes if other is not added)

    return remove


def current_site() -> CallSite | None:
    """The innermost piece of work any framework has under way here; None when there is none.

    Where frameworks are nested (one's agent in a tool of another's), the one begun last is the innermost. Work of another
    rollout than the running code's is not asked about.
    """
    sites = (site for added in _probes if (site := _asked(added)) is not None and _counts(site.span))
    return max(sites, key=lambda site: site.span.start_time or 0, default=None)


def _asked(added: _Added) -> CallSite | None:
    try:
        return added.probe()
    except Exception as error:  # noqa: BLE001 - a plug-in's probe may raise anything; the agent's call must not fail for it
        if not added.failed:
            added.failed = True
            _logger.warning(
                "A framework's probe failed, so calls may lack their agent: %s: %s", type(error).__name__, error
            )
        return None


def _counts(span: Span) -> bool:
    """Whether the work is still under way, in the rollout of the running code."""
    attributes = span.attributes or {}
    if not span.is_recording():
        return False
    if semconv.ROLLOUT_ID not in attributes:
        return True
    scope = current_scope()
    owner = (attributes[semconv.ROLLOUT_ID], attributes.get(semconv.ATTEMPT))
    return scope is not None and owner == (scope.rollout_id, scope.attempt)
