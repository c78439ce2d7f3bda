"""Stands in for `python -m vllm.entrypoints.openai.api_server`: the same routes, a rule instead of a model, and faults on demand.

The next token follows from all tokens before it and from the weights, which are a number in the file `weights` of a folder; the
log-probability says which weights drew it. So an answer that was drawn in pieces can be told from one that was not.

Its behaviour is set by the variable FAKE, or later through POST /fake:
    token_seconds   between two tokens
    load_seconds    before it listens
    reload_seconds  that taking weights lasts
    die_at_start    it exits at once, with a message
    break_after     tokens, after which it exits in the middle of an answer; once
    deaf            /health says 503
    refuse_weights  it answers 500 when it is to take weights
    fail            /v1/completions answers with this status
    lose            it leaves out the token at this place of an answer, but counts it; once
    child           it starts a process of its own
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

END = 99
DYING = """\
(EngineCore pid=9) ERROR 12-03 12:26:18 [core.py:1366]     raise ValueError(
(EngineCore pid=9) ERROR 12-03 12:26:18 [core.py:1366] ValueError: No available memory for the cache blocks.
(APIServer pid=8)     raise RuntimeError(
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
leaked objects"""


def next_token(ids: Sequence[int], weights: int) -> int:
    """Of the alphabet 65 to 89, hence A to Y in bytes."""
    return 65 + (sum(ids) * 7 + len(ids) + weights * 13) % 25


def logprob(weights: int) -> float:
    return -1.0 - weights / 8


class Fake:
    def __init__(self, arguments: argparse.Namespace, faults: dict[str, Any]) -> None:
        self.arguments, self.faults = arguments, faults
        self.weights = {arguments.served_model_name: read(Path(arguments.model))}
        self.asked: list[dict[str, Any]] = []
        self.orders: list[str] = []
        self.running = asyncio.Event()
        self.running.set()
        self.aborted = 0
        self.child = 0
        if faults.get("child"):
            script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
            self.child = subprocess.Popen([sys.executable, "-c", script]).pid

    async def fake(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.faults |= await request.json()
        told = {"asked": self.asked, "orders": self.orders, "pid": os.getpid(), "child": self.child}
        return web.json_response({**told, "aborted": self.aborted, "argv": sys.argv[1:], "environ": dict(os.environ)})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.faults.get("deaf") else 200)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.faults.get("version", "0.32.0")})

    async def models(self, _: web.Request) -> web.Response:
        own = {"id": self.arguments.served_model_name, "max_model_len": self.arguments.max_model_len, "parent": None}
        return web.json_response({"object": "list", "data": [own]})

    async def info(self, _: web.Request) -> web.Response:
        mode, device = self.arguments.logprobs_mode, self.faults.get("device", "cpu")
        model = {"model": self.arguments.model, "logprobs_mode": mode}
        return web.json_response({"vllm_config": {"model_config": model, "device_config": {"device_type": device}}})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        if status := self.faults.get("fail"):
            return web.json_response({"error": {"message": "it was told to fail"}}, status=status)
        if asked["model"] not in self.weights:
            return web.json_response({"error": {"message": f"no model {asked['model']}"}}, status=404)
        await self.running.wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        ids, left = list(asked["prompt"]), asked["max_tokens"]
        try:
            while left:
                await asyncio.sleep(self.faults.get("token_seconds", 0.0))
                weights = self.weights[asked["model"]]
                token = next_token(ids, weights)
                ids.append(token)
                left -= 1
                ended = "stop" if token in asked.get("stop_token_ids", ()) else None if left else "length"
                count = len(ids) - len(asked["prompt"])
                if count == self.faults.get("lose"):
                    del self.faults["lose"]
                else:
                    await response.write(chunk(token, weights, ended, asked["logprobs"], count))
                if (most := self.faults.get("break_after")) and len(ids) - len(asked["prompt"]) >= most:
                    os._exit(3)
                if ended:
                    break
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        return response

    async def pause(self, request: web.Request) -> web.Response:
        self.orders.append(f"pause {request.query['mode']}")
        self.running.clear()
        return web.json_response({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        self.orders.append("resume")
        self.running.set()
        return web.json_response({"status": "resumed"})

    async def rpc(self, request: web.Request) -> web.Response:
        order = await request.json()
        self.orders.append(order["method"])
        if self.running.is_set():
            return web.json_response({"error": "not paused"}, status=400)
        return await self.take(self.arguments.served_model_name, order["kwargs"]["weights_path"])

    async def reset(self, _: web.Request) -> web.Response:
        self.orders.append("reset_prefix_cache")
        return web.json_response({"success": True})

    async def load(self, request: web.Request) -> web.Response:
        order = await request.json()
        self.orders.append(f"load {order['lora_name']}")
        if order["lora_name"] in self.weights:
            return web.json_response({"error": "already loaded"}, status=400)
        return await self.take(order["lora_name"], order["lora_path"])

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.orders.append(f"unload {name}")
        del self.weights[name]
        return web.Response(text="done")

    async def take(self, name: str, folder: str) -> web.Response:
        if self.faults.get("refuse_weights"):
            return web.json_response({"error": "out of memory"}, status=500)
        await asyncio.sleep(self.faults.get("reload_seconds", 0.0))
        self.weights[name] = read(Path(folder))
        return web.Response(text="done")


def read(folder: Path) -> int:
    return int((folder / "weights").read_text())


def chunk(token: int, weights: int, ended: str | None, alternatives: int, count: int) -> bytes:
    value = logprob(weights)
    logprobs = {"token_logprobs": [value], "top_logprobs": [{f"token_id:{token}": value}] if alternatives else None}
    text = chr(token)
    choice = {"index": 0, "text": text, "token_ids": [token], "logprobs": logprobs, "finish_reason": ended}
    return f"data: {json.dumps({'choices': [choice], 'usage': {'completion_tokens': count}})}\n\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("host", "model", "served-model-name", "logprobs-mode"):
        parser.add_argument(f"--{name}")
    for name in ("port", "max-model-len"):
        parser.add_argument(f"--{name}", type=int)
    arguments, _ = parser.parse_known_args()
    faults = json.loads(os.environ.get("FAKE", "{}"))
    sys.stdout.write("the fake begins\n")
    sys.stdout.flush()
    time.sleep(faults.get("load_seconds", 0.0))
    if faults.get("die_at_start"):
        sys.exit(DYING)
    asyncio.run(serve(arguments, faults))


async def serve(arguments: argparse.Namespace, faults: dict[str, Any]) -> None:
    fake = Fake(arguments, faults)
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", fake.health),
            web.get("/version", fake.version),
            web.get("/v1/models", fake.models),
            web.get("/server_info", fake.info),
            web.post("/v1/completions", fake.complete),
            web.post("/pause", fake.pause),
            web.post("/resume", fake.resume),
            web.post("/collective_rpc", fake.rpc),
            web.post("/reset_prefix_cache", fake.reset),
            web.post("/v1/load_lora_adapter", fake.load),
            web.post("/v1/unload_lora_adapter", fake.unload),
            web.get("/fake", fake.fake),
            web.post("/fake", fake.fake),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, arguments.host, arguments.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
