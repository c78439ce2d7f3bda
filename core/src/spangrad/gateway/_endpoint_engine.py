"""An engine over an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from spangrad.gateway._endpoint_answer import answer_deltas, chunk_deltas
from spangrad.gateway._endpoint_client import EndpointClient
from spangrad.gateway._engine import EngineDelta, EngineRequest

_OWN_FIELDS: Final = frozenset({"stream", "stream_options", "model", "logprobs", "return_token_ids"})
"""Fields of the agent's body that this engine sets itself."""
_PATH: Final = "/chat/completions"


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
        self._client = EndpointClient(base_url, api_key, timeout=timeout)
        self._model = model
        self._ask_token_ids = ask_token_ids

    @property
    def name(self) -> str:
        """The endpoint's URL."""
        return self._client.url

    async def chat(self, request: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
        """Asks the server and passes on what it says.

        Raises:
            EngineError: the server's own error with its status; 502 when it cannot be reached or breaks off, 504 when it is silent.
        """
        stream = request.stream and not request.tools
        payload = self._payload(request, stream=stream)
        if not stream:
            for delta in answer_deltas(await self._client.whole(_PATH, payload), self.policy_version):
                yield delta
            return
        async with aclosing(self._client.stream(_PATH, payload)) as chunks:
            async for chunk in chunks:
                for delta in chunk_deltas(chunk, self.policy_version):
                    yield delta

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
