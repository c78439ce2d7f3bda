"""Requests to an OpenAI-compatible server, whose troubles become errors that an agent's client understands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx
from pydantic_core import from_json

from spangrad.gateway._engine import EngineError
from spangrad.gateway._identity import is_loopback

_PASSED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")


class EndpointClient:
    """Asks one server.

    Args:
        base_url: the server's URL, `/v1` included.
        api_key: its key, if it wants one.
        timeout: seconds to wait for the server's next bytes.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout: float = 600.0) -> None:
        self.url: Final = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout, connect=10.0)
        self._client: httpx.AsyncClient | None = None

    async def whole(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that it answers with.

        Raises:
            EngineError: the server's own error with its status; 502 when it cannot be reached or breaks off, 504 when it is silent.
        """
        with self._troubles():
            async with self._http.stream("POST", path, json=payload) as response:
                data = await response.aread()
                if response.status_code != httpx.codes.OK:
                    raise self._refusal(response, data)
                return self._parsed(data)

    async def stream(self, path: str, payload: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """The JSON objects of the stream that it answers with, as they come; closing the generator hangs up.

        Raises:
            EngineError: as `whole`; 502 when the stream ends early.
        """
        with self._troubles():
            async with self._http.stream("POST", path, json=payload) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._refusal(response, await response.aread())
                async for chunk in self._chunks(response):
                    yield chunk

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    @property
    def _http(self) -> httpx.AsyncClient:
        """The client, made on first use because it belongs to the gateway's event loop."""
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=self._timeout,
                limits=limits,
                trust_env=not is_loopback(httpx.URL(self.url).host),  # a proxy cannot reach this machine's servers
            )
        return self._client

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        """Turns the connection's errors into ours."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise EngineError(f"The endpoint {self.url} did not answer in time", status=504) from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"The endpoint {self.url} cannot be reached or broke off: {str(error) or type(error).__name__}",
                cure="Check that it runs and that its URL is right",
                status=502,
            ) from error

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a server-sent stream, up to [DONE]."""
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            chunk = self._parsed(data.encode())
            if "error" in chunk:
                raise EngineError(f"The endpoint {self.url} failed while answering: {_message(chunk)}", status=502)
            yield chunk
        raise EngineError(f"The endpoint {self.url} ended its stream early", status=502)

    def _parsed(self, data: bytes) -> Mapping[str, Any]:
        try:
            body = from_json(data)
        except ValueError as error:
            raise EngineError(f"The endpoint {self.url} answered with no JSON: {data[:80]!r}", status=502) from error
        if not isinstance(body, dict):
            raise EngineError(f"The endpoint {self.url} answered with no JSON object: {data[:80]!r}", status=502)
        return body

    def _refusal(self, response: httpx.Response, data: bytes) -> EngineError:
        """The server's error, in its own words."""
        try:
            body = from_json(data)
        except ValueError:
            body = data.decode(errors="replace")[:300]
        details = body.get("error") if isinstance(body, dict) else None
        details = details if isinstance(details, dict) else {}
        # A wrong key or URL here is the gateway owner's mistake, not the agent's: its client must not blame its own key.
        status = 502 if response.status_code in {401, 403} or response.is_redirect else response.status_code
        return EngineError(
            f"The endpoint {self.url} answered {response.status_code}: {_message(body)}",
            status=status,
            code=_text(details.get("code")),
            param=_text(details.get("param")),
            headers={name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers},
        )


def _message(body: Any) -> str:
    """The message of an error body, whichever of the usual shapes it has."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        return str(inner.get("message", inner) if isinstance(inner, Mapping) else inner)
    return str(body)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
