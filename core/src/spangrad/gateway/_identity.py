"""Whose request it is: by key first, then by URL or headers."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from spangrad.capture import checked_score, checked_state
from spangrad.errors import StateError
from spangrad.gateway._access import KEY_PREFIX, AccessBook, Entry
from spangrad.gateway._engine import EngineError
from spangrad.semconv import ATTEMPT_HEADER, ROLLOUT_HEADER, SCORE_HEADER, STATE_HEADER


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    entry: Entry | None
    """The rollout's attempt; None when the request names none."""
    evaluator: bool
    """It came with the evaluator's key."""


class Doorkeeper:
    """Decides who may do what.

    A rollout's key is the authority; its URL and headers must agree with it. Without any spangrad key, clients on this machine may
    call (if anonymous calls are allowed), as the rollout their URL or headers name, or as none.

    Args:
        book: the rollouts and their keys.
        evaluator_key: may speak for every rollout.
        allow_anonymous: clients on this machine need no key.
    """

    def __init__(self, book: AccessBook, evaluator_key: str, *, allow_anonymous: bool) -> None:
        self._book = book
        self._evaluator_key = evaluator_key.encode()
        self._allow_anonymous = allow_anonymous

    def identify(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> Caller:
        """The sender of a request.

        Args:
            scope: the ASGI scope, path parameters included.
            headers: the request's headers, names in lower case.

        Raises:
            EngineError: 401 (unknown or missing key), 403 (the key is another rollout's), 404 (no such rollout).
        """
        named = self._named(scope["path_params"], headers)
        key = _key(headers)
        entry = self._book.by_key(key)
        if entry is not None:
            access = entry.access
            if any(name != (access.rollout_id, access.attempt) for name in named):
                raise EngineError(
                    f"This key is for attempt {access.attempt} of rollout {access.rollout_id!r}, and the request names "
                    f"{' and '.join(f'attempt {attempt} of {rollout!r}' for rollout, attempt in sorted(named))}",
                    cure="Use each rollout's own key",
                    status=403,
                    code="wrong_rollout",
                )
            return Caller(entry, evaluator=False)
        evaluator = hmac.compare_digest(key.encode(), self._evaluator_key)
        if not evaluator:
            self._admit_anonymous(scope, key)
        if len(named) > 1:
            raise EngineError("The request's URL and headers name different rollouts", status=403, code="wrong_rollout")
        return Caller(self._entry(*named.pop()) if named else None, evaluator=evaluator)

    def require_evaluator(self, headers: Mapping[str, str]) -> None:
        """Lets only the evaluator's key pass.

        Raises:
            EngineError: 401 without a key or with an unknown one, 403 with a rollout's.
        """
        key = _key(headers)
        if hmac.compare_digest(key.encode(), self._evaluator_key):
            return
        known = self._book.by_key(key) is not None
        raise EngineError(
            "A rollout's key cannot do this" if known else "This needs the evaluator's key",
            cure="Send the gateway's evaluator key as `Authorization: Bearer ...`",
            status=403 if known else 401,
            code="evaluator_key_needed",
        )

    def find(self, rollout_id: str, attempt: int) -> Entry:
        """An attempt that must exist.

        Raises:
            EngineError: 404.
        """
        return self._entry(rollout_id, attempt)

    def _entry(self, rollout_id: str, attempt: int) -> Entry:
        entry = self._book.find(rollout_id, attempt)
        if entry is None:
            raise EngineError(
                f"There is no attempt {attempt} of a rollout {rollout_id!r}", status=404, code="rollout_not_found"
            )
        return entry

    def _admit_anonymous(self, scope: Mapping[str, Any], key: str) -> None:
        if key.startswith(KEY_PREFIX):
            raise EngineError(
                "This spangrad key is not known here; or its attempt was closed long ago",
                status=401,
                code="invalid_api_key",
            )
        client = scope.get("client")
        if not self._allow_anonymous or client is None or not is_loopback(client[0]):
            raise EngineError(
                "This gateway wants a key",
                cure="Send the rollout's key as the API key",
                status=401,
                code="invalid_api_key",
            )

    def _named(self, params: Mapping[str, Any], headers: Mapping[str, str]) -> set[tuple[str, int]]:
        """The rollouts a request names by URL and by headers, where ids may be percent-encoded (headers are ASCII)."""
        named = set()
        if "rollout_id" in params and "attempt" in params:
            named.add((params["rollout_id"], params["attempt"]))
        if rollout_id := headers.get(ROLLOUT_HEADER):
            attempt = headers.get(ATTEMPT_HEADER, "")
            if not attempt.isdecimal():
                raise EngineError(
                    f"The header {ROLLOUT_HEADER} needs a number in {ATTEMPT_HEADER}, not {attempt!r}", status=400
                )
            number = int(attempt)
            known = self._book.find(rollout_id, number) is not None
            named.add((rollout_id if known else unquote(rollout_id), number))
        return named


def read_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """A request's headers, names in lower case; of a repeated one the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def read_state(headers: Mapping[str, str]) -> tuple[str | None, float | None]:
    """The state a call's headers name, percent-decoded, and its score; None for what they do not say.

    Raises:
        EngineError: 400, one of them cannot be recorded.
    """
    state, score = headers.get(STATE_HEADER), headers.get(SCORE_HEADER)
    if state is None and score is not None:
        what = f"The header {SCORE_HEADER} comes without {STATE_HEADER}"
        raise EngineError(what, cure="A score is that of a state: name the state too", status=400, code="bad_state")
    try:
        return (
            None if state is None else checked_state(unquote(state, errors="surrogateescape")),
            None if score is None else checked_score(_decimal(score)),
        )
    except StateError as error:
        raise EngineError(error.what, cure=error.cure, status=400, code="bad_state") from error


def _decimal(text: str) -> object:
    """The number a text says, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _key(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
