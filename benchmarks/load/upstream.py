"""A model server that always says the same, at once: an OpenAI-compatible endpoint with token ids and log-probabilities.

Prints its port as {"answer": port} and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from wire import Messages

PROMPT: Final = 200
"""Ids of the prompt."""
ANSWER: Final = 32
"""Tokens of the answer."""


def answer() -> dict[str, Any]:
    """The answer, as vLLM would write it."""
    entries = [
        {"token": f" w{i}", "logprob": -0.125 * (i + 1), "bytes": list(f" w{i}".encode()), "top_logprobs": []}
        for i in range(ANSWER)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(entry["token"] for entry in entries)},  # type: ignore[misc]
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "token_ids": list(range(1000, 1000 + ANSWER)),
    }
    usage = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy"}
    return {**head, "choices": [choice], "usage": usage, "prompt_token_ids": list(range(PROMPT))}


def stream() -> bytes:
    """The same as a stream, a token at a time."""
    whole = answer()
    choice = whole["choices"][0]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    chunks = []
    for i, entry in enumerate(choice["logprobs"]["content"]):
        delta = {"role": "assistant", "content": entry["token"]} if i == 0 else {"content": entry["token"]}
        piece = {"index": 0, "delta": delta, "logprobs": {"content": [entry]}, "token_ids": [choice["token_ids"][i]]}
        first = {"prompt_token_ids": whole["prompt_token_ids"]} if i == 0 else {}
        chunks.append({**head, "choices": [piece], **first})
    chunks += [
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": whole["usage"]},
    ]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


_BODY: Final = json.dumps(answer()).encode()
_WHOLE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
) + _BODY
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + stream()


class Upstream(Messages):
    """Answers every request."""

    def message(self, head: bytes, body: bytes) -> None:  # noqa: ARG002 - the head says nothing that matters
        """One request."""
        streaming = b'"stream":true' in body or b'"stream": true' in body
        self.transport.write(_STREAM if streaming else _WHOLE)


async def main() -> None:
    """Serves."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", 0)
    print(json.dumps({"answer": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)  # whatever clients still hold open


if __name__ == "__main__":
    asyncio.run(main())
