"""An engine over an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from pydantic_core import from_json, to_json

from spangrad.gateway._endpoint_answer import answer_deltas, chunk_deltas
from spangrad.gateway._endpoint_client import EndpointClient, event_data
from spangrad.gateway._engine import EngineDelta, EngineError, EngineRequest

_OWN_FIELDS: Final = frozenset({"stream", "stream_options", "model", "logprobs", "return_token_ids"})
"""Fields of the agent's body that this engine sets itself."""
_PASSED_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")
_OK: Final = 200
_REDIRECTS: Final = range(300, 400)


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
        self._client = EndpointClient(self._url, api_key, timeout)

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
        data = to_json(self._payload(request, stream=stream))
        try:
            async with self._client.post("/chat/completions", data) as response:
                if response.status != _OK:
                    raise self._refusal(response, await response.read())
                if stream:
                    async for chunk in self._chunks(response):
                        for delta in chunk_deltas(chunk, self.policy_version):
                            yield delta
                else:
                    for delta in answer_deltas(self._parsed(await response.read()), self.policy_version):
                        yield delta
        except TimeoutError as error:
            raise EngineError(f"The endpoint {self._url} did not answer in time", status=504) from error
        except aiohttp.ClientError as error:
            raise EngineError(
                f"The endpoint {self._url} cannot be reached or broke off: {str(error) or type(error).__name__}",
                cure="Check that it runs and that its URL is right",
                status=502,
            ) from error

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

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

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a server-sent stream, up to [DONE]."""
        async for data in event_data(response.content):
            if data == b"[DONE]":
                return
            chunk = self._parsed(data)
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
            f"The endpoint {self._url} answered {response.status}: {_message(body)}",
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
