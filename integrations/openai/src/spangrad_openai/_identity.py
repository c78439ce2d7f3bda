"""Whose request it is, written into its URL and headers. Pure functions; nothing here knows openai.

The rule: a request made inside a rollout's scope and addressed to that scope's gateway becomes the rollout's own, whatever
client made it. So a client that was made once, at import or for an earlier rollout, serves all rollouts. A request to any
other host is left alone: neither our headers nor our keys ever leave for somewhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from spangrad import semconv
from spangrad.capture import AgentState, RolloutScope

T = TypeVar("T")

_ENDPOINT = re.compile(r"(?:/rollouts/[^/]+/attempts/[^/]+)?/v1(/.*)?")
"""Path of a model endpoint below the gateway's root, with any rollout's name in it or none."""
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1"})
_REPLACED = frozenset(
    {
        "authorization",
        semconv.ROLLOUT_HEADER,
        semconv.ATTEMPT_HEADER,
        semconv.CALL_HEADER,
        semconv.REQUEST_HEADER,
    }
)
_STATE = frozenset({semconv.STATE_HEADER, semconv.SCORE_HEADER})


def own_url(url: str, scope: RolloutScope) -> str | None:
    """The same endpoint below the scope's own base URL; None when `url` is no model endpoint of the scope's gateway."""
    gateway = urlsplit(scope.gateway_url or re.sub(r"(/rollouts/[^/]+/attempts/[^/]+)?/v1/?$", "", scope.base_url))
    asked = urlsplit(url)
    if _server(asked) != _server(gateway):
        return None
    root = gateway.path.rstrip("/")
    if not asked.path.startswith(root + "/"):
        return None
    endpoint = _ENDPOINT.fullmatch(asked.path, len(root))
    if endpoint is None:
        return None
    query = f"?{asked.query}" if asked.query else ""
    return scope.base_url.rstrip("/") + (endpoint[1] or "") + query


def own_headers(
    headers: Mapping[str, str | T],
    scope: RolloutScope,
    *,
    call_id: str,
    request_key: str,
    state: AgentState | None = None,
) -> dict[str, str | T]:
    """`headers` with the rollout's identity and key in place of whatever identity they had; other headers stay.

    Args:
        headers: the request's own headers; values may be a marker of the client library.
        scope: the rollout.
        call_id: unique per HTTP attempt.
        request_key: equal for all HTTP attempts of one request.
        state: the agent's; a state that the request's own headers name goes before it, with the score that they name.
    """
    kept: dict[str, str | T] = {name: value for name, value in headers.items() if name.lower() not in _REPLACED}
    named = {name.lower() for name in kept}
    told = {} if state is None or named & _STATE else state.headers()
    identity = {
        name: value
        for name, value in {**scope.headers(), **told}.items()
        if name.lower() not in named and _fits_a_header(value)
    }
    return {
        **kept,
        **identity,
        semconv.CALL_HEADER: call_id,
        semconv.REQUEST_HEADER: request_key,
        "Authorization": f"Bearer {scope.api_key}",
    }


def _fits_a_header(value: str) -> bool:
    """Names that HTTP cannot carry are left out: the URL and the key say whose request it is all the same."""
    return value.isascii() and value.isprintable() and value == value.strip()


def _server(url: SplitResult) -> tuple[str, str, int | None]:
    """Scheme, host and port, with the names of this machine taken for one."""
    host = url.hostname or ""
    return url.scheme, "localhost" if host in _LOOPBACK else host, url.port or _PORTS.get(url.scheme)
