"""Two hundred agents at once: every call is in the store, none twice, none in the wrong rollout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from spangrad.gateway import EngineError, Gateway, RolloutAccess
from spangrad.store import Store
from spangrad.testing import ByteChatFormat, Piece, ScriptedPrompt, scripted_logprob
from spangrad.transitions import Call, CallStatus

AGENTS = 200
CALLS = 2
FORMAT = ByteChatFormat()


class Moody:
    """Repeats the last message; the first try at every third message meets 429, at every fifth 500."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    def __call__(self, prompt: ScriptedPrompt) -> list[str]:
        text = prompt.last
        self.tries[text] += 1
        if self.tries[text] == 1 and (status := refused_with(text)):
            raise EngineError("as ordered", status=status, headers={"retry-after-ms": "1"})
        return [text[:3], text[3:]]


def refused_with(text: str) -> int | None:
    number = sum(int(part) for part in text.split("-"))
    return 429 if number % 3 == 0 else 500 if number % 5 == 0 else None


def messages(agent: int, call: int) -> list[Any]:
    return [{"role": "user", "content": f"{agent}-{call}"}]


def identity(agent: int, call: int) -> dict[str, str]:
    return {"x-spangrad-request": f"request-{agent}-{call}", "x-spangrad-agent": f"agent-{agent}"}


async def async_agent(client: openai.AsyncOpenAI, agent: int, *, stream: bool) -> list[str]:
    said = []
    for call in range(CALLS):
        create: Any = client.chat.completions.create
        answer = await create(
            model="model", messages=messages(agent, call), stream=stream, extra_headers=identity(agent, call)
        )
        if stream:
            said.append("".join([chunk.choices[0].delta.content or "" async for chunk in answer]))
        else:
            said.append(answer.choices[0].message.content)
    return said


def thread_agent(client: openai.OpenAI, agent: int, start: threading.Barrier, *, stream: bool) -> list[str]:
    start.wait(60)
    said = []
    for call in range(CALLS):
        create: Any = client.chat.completions.create
        answer = create(
            model="model", messages=messages(agent, call), stream=stream, extra_headers=identity(agent, call)
        )
        if stream:
            said.append("".join(chunk.choices[0].delta.content or "" for chunk in answer))
        else:
            said.append(answer.choices[0].message.content)
    return said


async def run_in_tasks(accesses: list[RolloutAccess], *, stream: bool) -> list[list[str]]:
    # A generous time limit: a connection that a busy machine makes slowly is no reason to repeat a request.
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=2, timeout=90) as shared:
        clients = [shared.with_options(base_url=access.base_url, api_key=access.api_key) for access in accesses]
        return await asyncio.gather(*(async_agent(client, i, stream=stream) for i, client in enumerate(clients)))


async def run_in_threads(accesses: list[RolloutAccess], *, stream: bool) -> list[list[str]]:
    start = threading.Barrier(AGENTS)

    def run() -> list[list[str]]:
        with openai.OpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=2, timeout=90) as shared:
            clients = [shared.with_options(base_url=access.base_url, api_key=access.api_key) for access in accesses]
            with ThreadPoolExecutor(AGENTS) as pool:
                jobs = [pool.submit(thread_agent, client, i, start, stream=stream) for i, client in enumerate(clients)]
                return [job.result() for job in jobs]

    return await asyncio.to_thread(run)


def check_rollout(calls: list[Call], agent: int) -> None:
    """An agent's rollout holds exactly its own calls: each message answered once, after the refusals it met."""
    expected: list[tuple[str, CallStatus, int]] = []
    for number in range(CALLS):
        text = f"{agent}-{number}"
        refused = refused_with(text) is not None
        expected += [(text, CallStatus.ERROR, 0)] * refused + [(text, CallStatus.OK, int(refused))]
    assert [(call.request["messages"][0]["content"], call.status, call.retry) for call in calls] == expected
    for call in calls:
        text = call.request["messages"][0]["content"]
        assert (call.request_key, call.agent) == (f"request-{text}", f"agent-{agent}")
        if call.status is CallStatus.OK:
            prompt = FORMAT.render(call.request["messages"])
            sampled = (*text.encode(), 257)
            assert call.prompt_ids == prompt
            assert call.choices[0].token_ids == sampled
            assert call.choices[0].logprobs == tuple(scripted_logprob(prompt, i, t, 0) for i, t in enumerate(sampled))
            assert call.choices[0].message["content"] == text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("run", [run_in_tasks, run_in_threads], ids=["tasks", "threads"])
async def test_two_hundred_agents_at_once_each_own_exactly_their_calls(
    make_gateway: Callable[..., Gateway], gateway_store: Store, run: Callable[..., Any], stream: bool
) -> None:
    gateway = make_gateway(Moody())
    accesses = [gateway.open_rollout(f"rollout-{agent}", 1) for agent in range(AGENTS)]
    said = await run(accesses, stream=stream)
    tallies = [gateway.close_rollout(f"rollout-{agent}", 1).result(timeout=10) for agent in range(AGENTS)]

    assert said == [[f"{agent}-{call}" for call in range(CALLS)] for agent in range(AGENTS)]
    stored = [gateway_store.calls(f"rollout-{agent}") for agent in range(AGENTS)]
    for agent, calls in enumerate(stored):
        check_rollout(calls, agent)
        assert tallies[agent].calls == len(calls)
        assert tallies[agent].answered == CALLS
    assert gateway_store.calls(None) == []
    assert gateway_store.counts()["calls"] == sum(map(len, stored))
    assert len({call.call_id for calls in stored for call in calls}) == sum(map(len, stored))


async def impatient_agent(access: RolloutAccess, draw: random.Random, requests: int) -> None:
    """Sends requests on connections of their own and hangs up on every other one after a random while."""
    host, port = access.base_url.removeprefix("http://").partition("/")[0].split(":")
    for number in range(requests):
        stream = draw.random() < 0.5
        body = {
            "model": "model",
            "stream": stream,
            "messages": [{"role": "user", "content": f"{access.rollout_id} {number}"}],
        }
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {access.api_key}\r\n"
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draw.random() * 0.05 if number % 2 else 60):
                await reader.read()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_agents_that_hang_up_at_random_leave_one_record_for_each_request(
    make_gateway: Callable[..., Gateway], gateway_store: Store
) -> None:
    def script(prompt: ScriptedPrompt) -> list[Piece]:
        draw = random.Random(prompt.last)
        return [
            piece for text in ("one ", "two ", "three") for piece in (text, lambda: asyncio.sleep(draw.random() / 50))
        ]

    gateway = make_gateway(script)
    accesses = [gateway.open_rollout(f"rollout-{agent}", 1) for agent in range(20)]
    await asyncio.gather(*(impatient_agent(access, random.Random(i), 10) for i, access in enumerate(accesses)))
    tallies = [gateway.close_rollout(access.rollout_id, 1).result(timeout=10) for access in accesses]
    seen: Counter[CallStatus] = Counter()
    for access, tally in zip(accesses, tallies, strict=True):
        calls = gateway_store.calls(access.rollout_id)
        assert len(calls) == tally.calls
        assert len({call.request["messages"][0]["content"] for call in calls}) == len(calls)
        for call in calls:
            seen[call.status] += 1
            sampled = bytes(
                token for choice in call.choices for token in choice.token_ids or () if token < 256
            ).decode()
            assert "one two three".startswith(sampled)
            assert call.status is not CallStatus.OK or sampled == "one two three"
    assert seen[CallStatus.OK] >= 100
    assert seen[CallStatus.UNDELIVERED] > 0
    assert seen[CallStatus.ERROR] == 0
