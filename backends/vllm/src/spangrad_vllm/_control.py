"""The routes by which a vLLM server is looked after: its health, and its weights.

Those that change weights exist under VLLM_SERVER_DEV_MODE=1 alone, and those for adapters under
VLLM_ALLOW_RUNTIME_LORA_UPDATING. They take orders without a key, so servers listen on this machine only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
from pydantic_core import from_json

from spangrad.errors import BackendError

_OK: Final = 200
_MISSING: Final = 404
_HEALTH_SECONDS: Final = 10.0
_SHORT_SECONDS: Final = 60.0


class RefusedError(BackendError):
    """The server answered that it will not or cannot."""


class Control:
    """Looks after one server; belongs to one event loop.

    Args:
        url: of the server, without `/v1`.
        weights_timeout: seconds that taking weights may last.
    """

    def __init__(self, url: str, *, weights_timeout: float) -> None:
        self.url: Final = url
        self._weights_timeout = weights_timeout
        self._session: aiohttp.ClientSession | None = None

    async def healthy(self) -> bool:
        """Whether it answers and says that its engine lives."""
        try:
            await self._ask("GET", "/health", seconds=_HEALTH_SECONDS)
        except BackendError:
            return False
        return True

    async def version(self) -> str:
        """Of vLLM.

        Raises:
            BackendError: it does not say.
        """
        return str((await self._told("/version")).get("version"))

    async def model(self) -> tuple[str, int | None]:
        """What it calls its own model, and how many tokens that takes.

        Raises:
            BackendError: it does not say.
        """
        cards = (await self._told("/v1/models")).get("data") or []
        own = next((card for card in cards if not card.get("parent")), None)
        if own is None:
            raise BackendError(f"The server {self.url} names no model")
        return str(own["id"]), own.get("max_model_len")

    async def settings(self) -> Mapping[str, Any]:
        """vLLM's configuration of the server, by part.

        Raises:
            BackendError: it does not say.
        """
        return dict((await self._told("/server_info?config_format=json")).get("vllm_config") or {})

    async def reload(self, folder: Path) -> None:
        """Takes the weights of a folder; answers under way are given up, and what was computed with the old weights is forgotten.

        Raises:
            BackendError: it does not take them.
        """
        await self._ask("POST", "/pause?mode=abort", seconds=_SHORT_SECONDS)
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._ask("POST", "/collective_rpc", order, seconds=self._weights_timeout)
        reset = await self._ask("POST", "/reset_prefix_cache", seconds=_SHORT_SECONDS)
        if reset.get("success") is False:
            raise RefusedError(f"The server {self.url} keeps what it computed with its old weights")
        await self._ask("POST", "/resume", seconds=_SHORT_SECONDS)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Serves an adapter under a new name, besides what it serves already.

        Raises:
            BackendError: it does not.
        """
        order = {"lora_name": name, "lora_path": str(folder)}
        await self._ask("POST", "/v1/load_lora_adapter", order, seconds=self._weights_timeout)

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter.

        Raises:
            BackendError: it does not.
        """
        await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, seconds=_SHORT_SECONDS)

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _told(self, path: str) -> Mapping[str, Any]:
        return await self._ask("GET", path, seconds=_SHORT_SECONDS)

    async def _ask(
        self, method: str, path: str, order: Mapping[str, Any] | None = None, *, seconds: float
    ) -> Mapping[str, Any]:
        """What it answers, where that is a JSON object.

        Raises:
            RefusedError: it answers with an error.
            BackendError: it does not answer.
        """
        if self._session is None:  # made on first use, because it belongs to the running loop
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        place = path.partition("?")[0]
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.request(method, self.url + path, json=order, timeout=timeout) as response:
                data = await response.read()
        except TimeoutError as error:
            raise BackendError(f"The vLLM server {self.url} did not answer {place} within {seconds:g} s") from error
        except aiohttp.ClientError as error:
            raise BackendError(
                f"The vLLM server {self.url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        if response.status == _MISSING:
            raise RefusedError(
                f"The vLLM server {self.url} has no {place}, or not what it was asked for: {_words(data)}",
                cure="Start it with VLLM_SERVER_DEV_MODE=1, and for adapters with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
            )
        if response.status != _OK:
            raise RefusedError(f"The vLLM server {self.url} answered {response.status} to {place}: {_words(data)}")
        try:
            body = from_json(data)
        except ValueError:
            return {}  # some say in plain words, or nothing at all, that it is done
        return body if isinstance(body, dict) else {}


def _words(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())[:300]
