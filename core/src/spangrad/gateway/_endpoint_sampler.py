"""A sampler that is another server: it is given token ids, and returns token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from spangrad.backend import FinishReason, SampleDelta, SampleRequest
from spangrad.gateway._endpoint_client import EndpointClient
from spangrad.gateway._engine import EngineError

_PATH: Final = "/completions"
_TOKEN: Final = "token_id:"
_FINISHES: Final = frozenset({"stop", "length"})


class EndpointSampler:
    """Has answers drawn by `/v1/completions` of a server that takes a prompt of token ids and honours `return_token_ids`
    (vLLM, SGLang).

    What such a server reports as log-probabilities has to be of the distribution the ids were drawn from
    (vLLM: `--logprobs-mode processed_logprobs`).

    Args:
        base_url: the server's URL, `/v1` included.
        model: the model name to ask it for.
        api_key: its key, if it wants one.
        context_length: of the model, in tokens.
        policy_version: what answers are stamped with.
        end_ids: ids that end an answer, besides those that the server knows.
        timeout: seconds to wait for the server's next bytes.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        context_length: int,
        policy_version: int,
        end_ids: Iterable[int] = (),
        timeout: float = 600.0,
    ) -> None:
        self._client = EndpointClient(base_url, api_key, timeout=timeout)
        self._model = model
        self._context_length = context_length
        self._policy_version = policy_version
        self._end_ids = sorted(end_ids)

    @property
    def url(self) -> str:
        """The server's."""
        return self._client.url

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return self._context_length

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """Draws the request's choices, yielding as tokens come; closing the generator hangs up, which stops the server's work.

        Raises:
            EngineError: the server's own error with its status; 502 when it cannot be reached, breaks off, or does not say all that
                a sampler must; 504 when it is silent.
        """
        counts = [0] * request.choices
        async with aclosing(self._client.stream(_PATH, self._payload(request))) as chunks:
            async for chunk in chunks:
                for delta in self._deltas(chunk, request, counts):
                    yield delta

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _payload(self, request: SampleRequest) -> dict[str, Any]:
        params = request.params
        payload: dict[str, Any] = {
            "model": self._model,
            "prompt": list(request.prompt_ids),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "n": request.choices,
            "logprobs": request.top_logprobs,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if params.top_k:
            payload["top_k"] = params.top_k
        if self._end_ids:
            payload["stop_token_ids"] = self._end_ids
        if params.stop:
            payload["stop"] = list(params.stop)
        if params.seed is not None:
            payload["seed"] = params.seed
        return payload

    def _deltas(self, chunk: Mapping[str, Any], request: SampleRequest, counts: list[int]) -> list[SampleDelta]:
        """What one chunk adds to each choice.

        Args:
            chunk: of the stream.
            request: what was asked for.
            counts: tokens of each choice so far; brought up to date.

        Raises:
            EngineError: 502, it is not in the API's shape, lacks ids or log-probabilities, or tokens are missing.
        """
        try:
            deltas = [self._delta(choice, request) for choice in chunk["choices"]]
            for delta in deltas:
                counts[delta.choice] += len(delta.token_ids)
            told = usage["completion_tokens"] if (usage := chunk.get("usage")) else None
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EngineError(
                f"The answer of the endpoint {self.url} is not in the shape of completions with token ids: {error!r}",
                cure="It must honour return_token_ids and logprobs; without them take its messages, not its tokens",
                status=502,
            ) from error
        # Servers have been seen to leave tokens out of a stream (vllm#27482). In a chunk with a choice usage is that choice's so far,
        # in the last one, which has none, that of all of them.
        seen = counts[deltas[0].choice] if len(deltas) == 1 else sum(counts)
        if told is not None and told != seen:
            raise EngineError(f"The endpoint {self.url} sent {seen} of {told} tokens", status=502)
        return deltas

    def _delta(self, choice: Mapping[str, Any], request: SampleRequest) -> SampleDelta:
        if (seen := choice.get("prompt_token_ids")) is not None and tuple(seen) != request.prompt_ids:
            raise EngineError(f"The endpoint {self.url} changed the prompt's tokens", status=502)
        if (reason := choice.get("finish_reason")) is not None and reason not in _FINISHES:
            raise EngineError(f"The endpoint {self.url} ended an answer with {reason!r}", status=502)
        ids = tuple(choice.get("token_ids") or ())
        told = choice.get("logprobs") or {}
        logprobs = tuple(map(float, told.get("token_logprobs") or ()))
        if len(logprobs) != len(ids) or (choice.get("text") and choice.get("token_ids") is None):
            raise ValueError(f"{len(ids)} token ids with {len(logprobs)} log-probabilities")
        return SampleDelta(
            choice=int(choice["index"]),
            token_ids=ids,
            logprobs=logprobs,
            text=choice.get("text") or "",
            policy_version=self._policy_version,
            finish_reason=cast("FinishReason | None", reason),
            top_logprobs=_alternatives(told.get("top_logprobs") or (), request.top_logprobs),
        )


def _alternatives(places: Iterable[Mapping[str, float]], most: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """At each place the likeliest tokens, named `token_id:ID`; servers also list the sampled one where it is not among them."""
    if not most:
        return ()
    ranked = (sorted(place.items(), key=lambda pair: -pair[1])[:most] for place in places)
    return tuple(tuple((int(name.removeprefix(_TOKEN)), float(logprob)) for name, logprob in pairs) for pairs in ranked)
