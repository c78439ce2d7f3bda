"""What a process of its own asks of the gateway: open a rollout, send its spans and rewards, finish it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from spangrad.capture._otlp_json import to_otlp_json
from spangrad.capture._reward_list import GivenReward
from spangrad.errors import GatewayError
from spangrad.spans import Span

if TYPE_CHECKING:
    import httpx

_TIMEOUT: Final = 30.0
_RETRIES: Final = 2
"""Further tries at a connection that cannot be made."""


class GatewayClient:
    """Speaks to one gateway; usable from any thread.

    Args:
        url: its root URL.
        key: its evaluator key.
        timeout: seconds to wait for it at each step of a request.
    """

    def __init__(self, url: str, key: str, *, timeout: float = _TIMEOUT) -> None:
        import httpx  # noqa: PLC0415 - takes a tenth of a second that programs which open no rollout need not spend

        self._url = url.strip().rstrip("/")
        key = key.strip()
        try:
            self._client = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=timeout,
                transport=httpx.HTTPTransport(retries=_RETRIES) if _is_local(self._url) else None,
            )
        except (httpx.InvalidURL, ValueError) as error:  # a key that is not ASCII is a ValueError
            raise GatewayError(
                f"The gateway cannot be asked: {error}",
                cure="Correct SPANGRAD_URL (like http://127.0.0.1:8400) or SPANGRAD_KEY",
            ) from error

    def open(self, **fields: Any) -> dict[str, Any]:
        """Opens a rollout; returns rollout_id, attempt, base_url and api_key.

        Raises:
            GatewayError: the gateway cannot be reached or refuses.
        """
        response = self._post("/rollouts", {name: value for name, value in fields.items() if value is not None})
        try:
            opened: dict[str, Any] = response.json()
            return {name: opened[name] for name in ("rollout_id", "attempt", "base_url", "api_key")}
        except (ValueError, TypeError, KeyError) as error:
            raise GatewayError(
                f"What answers at {self._url} is no spangrad gateway", cure="Correct SPANGRAD_URL"
            ) from error

    def send_spans(self, spans: Iterable[Span], *, key: str) -> None:
        """Sends spans of one rollout, under that rollout's own key.

        Raises:
            GatewayError: the gateway cannot be reached or refuses.
        """
        self._post("/v1/traces", to_otlp_json(spans), key=key)

    def reward(self, rollout_id: str, attempt: int, reward: GivenReward) -> None:
        """Gives one reward.

        Raises:
            GatewayError: the gateway cannot be reached or refuses.
        """
        body = {"value": reward.value, "name": reward.name, "call_id": reward.call_id}
        self._post(f"{_path(rollout_id, attempt)}/rewards", body)

    def finish(self, rollout_id: str, attempt: int, status: str, error: str) -> None:
        """Ends a rollout.

        Raises:
            GatewayError: the gateway cannot be reached or refuses.
        """
        self._post(f"{_path(rollout_id, attempt)}/finish", {"status": status, "error": error})

    def close(self) -> None:
        """Lets go of connections."""
        self._client.close()

    def _post(self, path: str, body: object, *, key: str | None = None) -> httpx.Response:
        import httpx  # noqa: PLC0415 - as above

        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            response = self._client.post(path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise GatewayError(
                f"No gateway answers at {self._url}: {type(error).__name__}: {error}",
                cure="Start one with `spangrad gateway`, or correct SPANGRAD_URL",
            ) from error
        if response.is_error:
            raise GatewayError(
                f"The gateway at {self._url} refused {path} with status {response.status_code}: {_reason(response)}"
            )
        return response


def _path(rollout_id: str, attempt: int) -> str:
    return f"/rollouts/{quote(rollout_id, safe='')}/attempts/{attempt}"


def _reason(response: httpx.Response) -> str:
    """The message of an error in OpenAI's shape, or the beginning of whatever the server said."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _is_local(url: str) -> bool:
    """Whether the URL is on this machine, where the user's HTTP proxy must not get the request."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
