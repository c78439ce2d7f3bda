"""Through the real gateway into a real store: every call of every rollout, once, under its own name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from opentelemetry.sdk.trace import ReadableSpan

from spangrad.capture import RolloutScope, deliver_spans, use_scope
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedSampler
from spangrad.transitions import CallStatus

pytestmark = pytest.mark.usefixtures("attached")

ROLLOUTS = [f"train-0001-tÄsk {number}" for number in range(8)]
WAYS = ["task", "stream", "to_thread", "executor"]


def messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "spangrad.db")
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def gateway(store: Store) -> Iterator[Gateway]:
    engine = TokenEngine(ScriptedSampler(lambda prompt: f"You said: {prompt.last}"), ByteChatFormat(), "scripted")
    with Gateway(store, [Route("policy", engine, policy="policy")]) as gateway:
        yield gateway


def scope(gateway: Gateway, rollout_id: str) -> RolloutScope:
    access = gateway.open_rollout(rollout_id, 1)
    return RolloutScope(rollout_id, 1, "task", access.base_url, access.api_key, gateway_url=gateway.base_url)


async def call_in_every_way(rollout: str, shared: AsyncOpenAI, sync: OpenAI, pool: ThreadPoolExecutor) -> None:
    """One call per way of calling."""

    def call(way: str) -> None:
        sync.chat.completions.create(model="policy", messages=messages(f"{rollout} {way}"))

    await shared.chat.completions.create(model="policy", messages=messages(f"{rollout} task"))
    text = ""
    async for chunk in await shared.chat.completions.create(
        model="policy", messages=messages(f"{rollout} stream"), stream=True
    ):
        text += chunk.choices[0].delta.content or ""
    assert text == f"You said: {rollout} stream"
    await asyncio.to_thread(call, "to_thread")
    await asyncio.get_running_loop().run_in_executor(pool, call, "executor")


async def test_each_rollout_owns_exactly_its_calls(gateway: Gateway, store: Store) -> None:
    spans: list[ReadableSpan] = []
    url = f"{gateway.base_url}/v1"
    with deliver_spans(spans.extend), ThreadPoolExecutor(4) as pool, OpenAI(base_url=url, api_key="mine") as sync:
        async with AsyncOpenAI(base_url=url, api_key="mine") as shared:

            async def one(rollout: str) -> None:
                with use_scope(scope(gateway, rollout)):
                    await call_in_every_way(rollout, shared, sync, pool)

            await asyncio.gather(*(one(rollout) for rollout in ROLLOUTS))

    assert store.calls(None) == []
    named = {str((span.attributes or {})["spangrad.call.id"]): span for span in spans}
    for rollout in ROLLOUTS:
        calls = store.calls(rollout)
        assert {call.status for call in calls} == {CallStatus.OK}
        assert [call.request["messages"][0]["content"] for call in calls] == [f"{rollout} {way}" for way in WAYS]
        for call in calls:
            assert (named.pop(call.call_id).attributes or {})["spangrad.rollout.id"] == rollout
    assert named == {}


async def test_a_client_still_set_to_a_rollout_that_is_over_serves_the_next(gateway: Gateway, store: Store) -> None:
    first, second = scope(gateway, "first"), scope(gateway, "second")
    async with AsyncOpenAI(base_url=first.base_url, api_key=first.api_key) as client:
        with use_scope(first):
            await client.chat.completions.create(model="policy", messages=messages("one"))
        await asyncio.wrap_future(gateway.close_rollout("first", 1))
        with use_scope(second):
            await client.chat.completions.create(model="policy", messages=messages("two"))

    assert [call.request["messages"][0]["content"] for call in store.calls("first")] == ["one"]
    assert [call.request["messages"][0]["content"] for call in store.calls("second")] == ["two"]
