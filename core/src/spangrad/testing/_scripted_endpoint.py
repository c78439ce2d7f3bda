"""A real OpenAI-compatible server with faults to order."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from spangrad.backend import SampleRequest, SamplingParams
from spangrad.gateway._address import Address
from spangrad.gateway._server import ServerThread
from spangrad.testing._byte_chat_format import ByteChatFormat
from spangrad.testing._scripted_sampler import ScriptedPrompt, ScriptedSampler, scripted_logprob

Reply = Callable[[Mapping[str, Any]], str | Mapping[str, Any]]
"""From a request's JSON body to the answer: text, or a whole assistant message."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One HTTP request as it arrived."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]


@dataclass
class ScriptedEndpoint:
    """An OpenAI-compatible server on a real socket, in its own thread; use it as a context manager.

    Its tokens are bytes (`ByteChatFormat`), its log-probabilities `scripted_logprob` of version 0. Completions take a prompt of token
    ids and are streamed; the reply gets their `messages` too, as `ByteChatFormat.read` reads them, and `choice`.
    """

    reply: Reply
    token_ids: bool = True
    """Honours `return_token_ids` and logprobs; otherwise it answers without either, as most servers do."""
    fail_first: int = 0
    """How many requests fail before the first is answered."""
    fail_status: int = 500
    """HTTP status of those failures; 429 comes with `retry-after-ms: 1`."""
    delay: float = 0.0
    """Seconds before it answers."""
    break_off: bool = False
    """Closes the connection in the middle of an answer."""

    def __post_init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        """All requests so far, failed ones included."""
        self._lock = threading.Lock()
        self._format = ByteChatFormat()
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        self._address = Address()
        self._server = ServerThread(Starlette(routes=routes), address=self._address, name="scripted-endpoint")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def base_url(self) -> str:
        """OpenAI base URL, `/v1` included."""
        return f"{self._address.base_url}/v1"

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if refused := await self._received(request, body):
            return refused
        answer = self._answer(body)
        if body.get("stream"):
            return StreamingResponse(self._events(answer, body), media_type="text/event-stream")
        if self.break_off:
            return StreamingResponse(self._half(json.dumps(answer)), media_type="application/json")
        return JSONResponse(answer)

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if refused := await self._received(request, body):
            return refused
        return StreamingResponse(self._completion(body), media_type="text/event-stream")

    async def _completion(self, body: Mapping[str, Any]) -> AsyncIterator[str]:
        """The answer's text as a stream, a chunk for each choice's half; breaking off comes after the first."""
        honoured = {
            name: body[name] for name in ("temperature", "top_p", "top_k", "max_tokens", "seed") if name in body
        }
        params = SamplingParams(**honoured, stop=tuple(body.get("stop") or ()))
        prompt = tuple(body["prompt"])
        asked = SampleRequest(prompt, params, body.get("logprobs") or 0, body.get("n", 1))

        def script(seen: ScriptedPrompt) -> list[str]:
            reply = self.reply({**body, "messages": seen.messages, "choice": seen.choice})
            text = reply if isinstance(reply, str) else self._format.decode(self._format.render_answer(reply)[:-1])
            return [text[: len(text) // 2], text[len(text) // 2 :]]

        async for delta in ScriptedSampler(script).sample(asked):
            choice: dict[str, Any] = {"index": delta.choice, "text": delta.text, "finish_reason": delta.finish_reason}
            if self.token_ids:
                tops = [{f"token_id:{token}": value for token, value in place} for place in delta.top_logprobs]
                choice["logprobs"] = {"token_logprobs": list(delta.logprobs), "top_logprobs": tops}
                if body.get("return_token_ids"):
                    choice |= {"token_ids": list(delta.token_ids), "prompt_token_ids": list(prompt)}
            yield _event({"object": "text_completion", "model": body["model"], "choices": [choice]})
            if self.break_off:
                raise ConnectionResetError("as ordered")
        yield "data: [DONE]\n\n"

    async def _received(self, request: Request, body: Mapping[str, Any]) -> Response | None:
        """Keeps the request; the failure that was ordered for it, if one was."""
        with self._lock:
            self.requests.append(ReceivedRequest(request.url.path, dict(request.headers), body))
            failing = len(self.requests) <= self.fail_first
        if self.delay:
            await asyncio.sleep(self.delay)
        if not failing:
            return None
        error = {"message": "as ordered", "type": "scripted", "code": "scripted_failure"}
        headers = {"retry-after-ms": "1"} if self.fail_status == 429 else None  # noqa: PLR2004 - too many requests
        return JSONResponse({"error": error}, self.fail_status, headers)

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = self.reply(body)
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
        prompt = self._format.render(body["messages"], tools=body.get("tools") or ())
        ids = self._format.render_answer(message)
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        }
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "total_tokens": len(prompt) + len(ids),
            },
        }
        if self.token_ids and body.get("logprobs"):
            choice["logprobs"] = {"content": [self._entry(prompt, i, token) for i, token in enumerate(ids)]}
        if self.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = list(ids)
            answer["prompt_token_ids"] = list(prompt)
        return answer

    def _entry(self, prompt: tuple[int, ...], position: int, token: int) -> dict[str, Any]:
        text = self._format.decode((token,))
        logprob = scripted_logprob(prompt, position, token, 0)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}

    async def _events(self, answer: dict[str, Any], body: Mapping[str, Any]) -> AsyncIterator[str]:
        """The answer as a stream, in two pieces of content; breaking off comes between them."""
        choice, head = answer["choices"][0], {"id": answer["id"], "object": "chat.completion.chunk", "created": 0}
        text = choice["message"]["content"] or ""
        ids = choice.get("token_ids")
        entries = (choice.get("logprobs") or {}).get("content")
        cut = len(text.encode()[: len(text) // 2])
        for first, last in ((0, cut), (cut, len(text.encode()) + 1)):
            piece: dict[str, Any] = {
                "index": 0,
                "delta": {"content": text.encode()[first:last].decode(errors="replace")},
            }
            if ids is not None:
                piece["token_ids"] = ids[first:last]
            if entries is not None:
                piece["logprobs"] = {"content": entries[first:last]}
            prompt = {"prompt_token_ids": answer["prompt_token_ids"]} if ids is not None and first == 0 else {}
            yield _event({**head, "model": answer["model"], "choices": [piece], **prompt})
            if self.break_off:
                raise ConnectionResetError("as ordered")
        ending = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield _event({**head, "model": answer["model"], "choices": [ending]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event({**head, "model": answer["model"], "choices": [], "usage": answer["usage"]})
        yield "data: [DONE]\n\n"

    @staticmethod
    async def _half(text: str) -> AsyncIterator[str]:
        yield text[: len(text) // 2]
        raise ConnectionResetError("as ordered")


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
