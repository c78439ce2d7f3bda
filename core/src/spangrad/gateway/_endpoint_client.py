"""HTTP to an OpenAI-compatible server: connections that are kept, and streams read as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from spangrad.gateway._identity import is_loopback

_CONNECT_SECONDS: Final = 10.0
_KEEP_SECONDS: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn, and so vLLM, closes its end."""


class EndpointClient:
    """Keeps the connections to one server. All of it belongs to one event loop.

    Args:
        url: the server's, `/v1` included.
        api_key: its key, if it wants one.
        timeout: seconds to wait for the server's next bytes.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        self._url = url
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=timeout)
        self.proxy = _proxy(url)
        """URL of the proxy it is asked through."""
        self._session: aiohttp.ClientSession | None = None

    def post(self, path: str, data: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends JSON; the answer's head is there when the context is entered, its body is read inside.

        Raises:
            aiohttp.ClientError: it cannot be reached or broke off, also while the body is read.
            TimeoutError: it was silent.
        """
        if self._session is None:  # made on first use, because it belongs to the running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=self._timeout,
            )
        return self._session.post(self._url + path, data=data, proxy=self.proxy, allow_redirects=False)

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def event_data(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
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
