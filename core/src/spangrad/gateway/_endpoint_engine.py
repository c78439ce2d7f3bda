"""An engine over an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import httpx
from pydantic_core import from_json

from spangrad.gateway._endpoint_answer import answer_deltas, chunk_deltas
from spangrad.gateway._engine import EngineDelta, EngineError, EngineRequest
from spangrad.gateway._identity import is_loopback

_OWN_FIELDS: Final = frozenset({"stream", "stream_options", "model", "logprobs", "return_token_ids"})
"""Fields of the agent's body that this engine sets itself."""
_PASSED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")


class EndpointEngine:
    """Answers chat requests by asking an OpenAI-compatible server (vLLM, SGLang, OpenAI ...).

    With tools the server is always asked without streaming, and the answer is streamed on in one piece: vLLM loses token ids when it
    parses tool calls out of a stream (vllm-project/vllm#27482).

    Args:
        base_url: the server's URL, `/v1` included.
        model: the model name to ask it for; None passes on the agent's alias.
        api_key: its key, if it wants one.
        ask_token_ids: ask for `return_token_ids` and logprobs; servers that refuse unknown fields need False.
        policy_version: what calls are stamped with; may be set later.
        timeout: seconds to wait for the server's next bytes.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        ask_token_ids: bool = True,
        policy_version: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.policy_version = policy_version
        self._url = base_url.rstrip("/")
        self._model = model
        self._ask_token_ids = ask_token_ids
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout, connect=10.0)
        self._client: httpx.AsyncClient | None = None

    @property
    def name(self) -> str:
        """The endpoint's URL."""
        return self._url

    async def chat(self, request: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
        """Asks the server and passes on what it says.

        Raises:
            EngineError: the server's own error with its status; 502 when it cannot be reached or breaks off, 504 when it is silent.
        """
        stream = request.stream and not request.tools
        try:
            async with self._http.stream(
                "POST", "/chat/completions", json=self._payload(request, stream=stream)
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._refusal(response, await response.aread())
                if stream:
                    async for chunk in self._chunks(response):
                        for delta in chunk_deltas(chunk, self.policy_version):
                            yield delta
                else:
                    for delta in answer_deltas(self._parsed(await response.aread()), self.policy_version):
                        yield delta
        except httpx.TimeoutException as error:
            raise EngineError(f"The endpoint {self._url} did not answer in time", status=504) from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"The endpoint {self._url} cannot be reached or broke off: {str(error) or type(error).__name__}",
                cure="Check that it runs and that its URL is right",
                status=502,
            ) from error

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
                base_url=self._url,
                headers=self._headers,
                timeout=self._timeout,
                limits=limits,
                trust_env=not is_loopback(httpx.URL(self._url).host),  # a proxy cannot reach this machine's servers
            )
        return self._client

    def _payload(self, request: EngineRequest, *, stream: bool) -> dict[str, Any]:
        """The agent's body with the sampling settings that are really to be used."""
        params = request.params
        payload = {name: value for name, value in request.body.items() if name not in _OWN_FIELDS}
        payload["model"] = self._model or request.model
        payload |= {"temperature": params.temperature, "top_p": params.top_p}
        if params.top_k or "top_k" in payload:
            payload["top_k"] = params.top_k or -1
        if request.limited:
            name = "max_completion_tokens" if payload.get("max_completion_tokens") else "max_tokens"
            payload[name] = params.max_tokens
        if params.seed is not None:
            payload["seed"] = params.seed
        if self._ask_token_ids:
            payload |= {"return_token_ids": True, "logprobs": True}
        elif request.logprobs:
            payload["logprobs"] = True
        if stream:
            payload |= {"stream": True, "stream_options": {"include_usage": True}}
        return payload

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
                raise EngineError(f"The endpoint {self._url} failed while answering: {_message(chunk)}", status=502)
            yield chunk
        raise EngineError(f"The endpoint {self._url} ended its stream early", status=502)

    def _parsed(self, data: bytes) -> Mapping[str, Any]:
        try:
            body = from_json(data)
        except ValueError as error:
            raise EngineError(f"The endpoint {self._url} answered with no JSON: {data[:80]!r}", status=502) from error
        if not isinstance(body, dict):
            raise EngineError(f"The endpoint {self._url} answered with no JSON object: {data[:80]!r}", status=502)
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
            f"The endpoint {self._url} answered {response.status_code}: {_message(body)}",
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
