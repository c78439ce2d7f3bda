"""Requests to an OpenAI-compatible server, whose troubles become errors that an agent's client understands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic_core import from_json, to_json

from spangrad.gateway._engine import EngineError
from spangrad.gateway._identity import is_loopback

_PASSED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
_OK: Final = 200
_REDIRECTS: Final = range(300, 400)
_CONNECT_SECONDS: Final = 10.0
_KEEP_SECONDS: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn, and so vLLM, closes its end."""


class EndpointClient:
    """Asks one server, and keeps the connections to it. All of it belongs to one event loop.

    Args:
        base_url: the server's URL, `/v1` included.
        api_key: its key, if it wants one.
        timeout: seconds to wait for the server's next bytes.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout: float = 600.0) -> None:
        self.url: Final = base_url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=timeout)
        self.proxy: Final = _proxy(self.url)
        """URL of the proxy it is asked through."""
        self._session: aiohttp.ClientSession | None = None

    async def whole(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that it answers with.

        Raises:
            EngineError: the server's own error with its status; 502 when it cannot be reached or breaks off, 504 when it is silent.
        """
        with self._troubles():
            async with self._post(path, payload) as response:
                data = await response.read()
                if response.status != _OK:
                    raise self._refusal(response, data)
                return self._parsed(data)

    async def stream(self, path: str, payload: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """The JSON objects of the stream that it answers with, as they come; closing the generator hangs up.

        Raises:
            EngineError: as `whole`; 502 when the stream ends early.
        """
        with self._troubles():
            async with self._post(path, payload) as response:
                if response.status != _OK:
                    raise self._refusal(response, await response.read())
                async for chunk in self._chunks(response):
                    yield chunk

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _post(self, path: str, payload: Mapping[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The answer's head is there when the context is entered; its body is read inside."""
        if self._session is None:  # made on first use, because it belongs to the running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=self._timeout,
            )
        return self._session.post(self.url + path, data=to_json(payload), proxy=self.proxy, allow_redirects=False)

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        """Turns the connection's errors into ours."""
        try:
            yield
        except TimeoutError as error:
            raise EngineError(f"The endpoint {self.url} did not answer in time", status=504) from error
        except aiohttp.ClientError as error:
            raise EngineError(
                f"The endpoint {self.url} cannot be reached or broke off: {str(error) or type(error).__name__}",
                cure="Check that it runs and that its URL is right",
                status=502,
            ) from error

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a server-sent stream, up to [DONE]."""
        async for data in _event_data(response.content):
            if data == b"[DONE]":
                return
            chunk = self._parsed(data)
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

    def _refusal(self, response: aiohttp.ClientResponse, data: bytes) -> EngineError:
        """The server's error, in its own words."""
        try:
            body = from_json(data)
        except ValueError:
            body = data.decode(errors="replace")[:300]
        details = body.get("error") if isinstance(body, dict) else None
        details = details if isinstance(details, dict) else {}
        # A wrong key or URL here is the gateway owner's mistake, not the agent's: its client must not blame its own key.
        status = 502 if response.status in {401, 403} or response.status in _REDIRECTS else response.status
        return EngineError(
            f"The endpoint {self.url} answered {response.status}: {_message(body)}",
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


async def _event_data(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of server-sent events, one line each, as soon as they are there."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
    if rest.startswith(b"data:"):
        yield rest.removeprefix(b"data:").strip()


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for the server; none can reach this machine's own."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)
