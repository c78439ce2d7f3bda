"""Each rollout owns exactly the calls made in it, however they are made."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from spangrad.capture import use_scope

if TYPE_CHECKING:
    from integrations.openai.tests.conftest import RecordingServer

pytestmark = pytest.mark.usefixtures("attached")

ROLLOUTS = [f"rollout-{number}" for number in range(8)]
SAID = ["first", "second", "third"]


def messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


async def each_in_its_scope(server: RecordingServer, agent: Callable[[str], Awaitable[None]]) -> None:
    """Runs the agent once per rollout, all at the same time."""

    async def one(rollout: str) -> None:
        with use_scope(server.scope(rollout)):
            await agent(rollout)

    await asyncio.gather(*(one(rollout) for rollout in ROLLOUTS))


def each_in_its_thread(server: RecordingServer, agent: Callable[[str], None]) -> None:
    """Runs the synchronous agent once per rollout, each in a thread of its own, all at the same time."""
    together = threading.Barrier(len(ROLLOUTS))

    def one(rollout: str) -> None:
        with use_scope(server.scope(rollout)):
            together.wait()
            agent(rollout)

    with ThreadPoolExecutor(len(ROLLOUTS)) as pool:
        list(pool.map(one, ROLLOUTS))


def assert_each_owns_its_calls(server: RecordingServer) -> None:
    """What was said in a rollout, and nothing else, arrived under its name, in its URL and with its key."""
    owned: dict[str, list[str]] = defaultdict(list)
    for request in server.received:
        rollout = request.headers["x-spangrad-rollout"]
        assert request.path == f"/rollouts/{rollout}/attempts/1/v1/chat/completions"
        assert request.headers["authorization"] == f"Bearer sk-spangrad-{rollout}"
        assert request.headers["x-spangrad-attempt"] == "1"
        owned[rollout].append(request.said)
    assert {rollout: sorted(said) for rollout, said in owned.items()} == {
        rollout: sorted(f"{rollout} {said}" for said in SAID) for rollout in ROLLOUTS
    }
    for header in ("x-spangrad-call", "x-spangrad-request"):
        assert len({request.headers[header] for request in server.received}) == len(server.received)


async def test_asyncio_tasks_that_share_a_client(server: RecordingServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        async def agent(rollout: str) -> None:
            for said in SAID:
                answer = await client.chat.completions.create(model="policy", messages=messages(f"{rollout} {said}"))
                assert answer.choices[0].message.content == f"{rollout} {said}"

        await each_in_its_scope(server, agent)

    assert_each_owns_its_calls(server)


async def test_asyncio_tasks_that_call_in_parallel_inside_each_rollout(server: RecordingServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        async def agent(rollout: str) -> None:
            calls = [client.chat.completions.create(model="policy", messages=messages(f"{rollout} {s}")) for s in SAID]
            await asyncio.gather(*calls)

        await each_in_its_scope(server, agent)

    assert_each_owns_its_calls(server)


async def test_asynchronous_streams(server: RecordingServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        async def agent(rollout: str) -> None:
            for said in SAID:
                text = ""
                async for chunk in await client.chat.completions.create(
                    model="policy", messages=messages(f"{rollout} {said}"), stream=True
                ):
                    text += chunk.choices[0].delta.content or ""
                assert text == f"{rollout}{said}"

        await each_in_its_scope(server, agent)

    assert_each_owns_its_calls(server)


async def test_to_thread(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        def call(text: str) -> None:
            client.chat.completions.create(model="policy", messages=messages(text))

        async def agent(rollout: str) -> None:
            for said in SAID:
                await asyncio.to_thread(call, f"{rollout} {said}")

        await each_in_its_scope(server, agent)

    assert_each_owns_its_calls(server)


async def test_an_executor_that_all_rollouts_share(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, ThreadPoolExecutor(3) as pool:

        def call(text: str) -> None:
            client.chat.completions.create(model="policy", messages=messages(text))

        async def agent(rollout: str) -> None:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, call, f"{rollout} {said}") for said in SAID))

        await each_in_its_scope(server, agent)

    assert_each_owns_its_calls(server)


@pytest.mark.parametrize("kind", ["thread", "timer"])
def test_raw_threads(server: RecordingServer, kind: str) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        def call(text: str) -> None:
            client.chat.completions.create(model="policy", messages=messages(text))

        def agent(rollout: str) -> None:
            texts = [f"{rollout} {said}" for said in SAID]
            threads: list[threading.Thread] = (
                [threading.Thread(target=call, args=(text,)) for text in texts]
                if kind == "thread"
                else [threading.Timer(0.001, call, (text,)) for text in texts]
            )
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        each_in_its_thread(server, agent)

    assert_each_owns_its_calls(server)


def test_threads_whose_class_overrides_run(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        class Caller(threading.Thread):
            def __init__(self, text: str) -> None:
                super().__init__()
                self.text = text

            def run(self) -> None:
                client.chat.completions.create(model="policy", messages=messages(self.text))

        def agent(rollout: str) -> None:
            callers = [Caller(f"{rollout} {said}") for said in SAID]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()

        each_in_its_thread(server, agent)

    assert_each_owns_its_calls(server)


@pytest.mark.usefixtures("attached")
def test_a_thread_that_was_on_its_way_when_the_integration_was_attached_runs() -> None:
    ran: list[str] = []
    threading.Thread(target=ran.append, args=("yes",)).run()  # nothing of ours saw its start

    assert ran == ["yes"]


def test_synchronous_streams_and_stream_helpers(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        def agent(rollout: str) -> None:
            first, second, third = (f"{rollout} {said}" for said in SAID)
            with client.chat.completions.create(model="policy", messages=messages(first), stream=True) as stream:
                assert [chunk.choices[0].delta.content for chunk in stream] == [*first.split(), None]
            with client.chat.completions.stream(model="policy", messages=messages(second)) as events:
                assert events.get_final_completion().choices[0].message.content == second.replace(" ", "")
            with client.chat.completions.create(model="policy", messages=messages(third), stream=True) as stream:
                next(iter(stream))

        each_in_its_thread(server, agent)

    assert_each_owns_its_calls(server)


def test_raw_responses(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client:

        def agent(rollout: str) -> None:
            for said in SAID:
                text = f"{rollout} {said}"
                raw = client.chat.completions.with_raw_response.create(model="policy", messages=messages(text))
                assert raw.parse().choices[0].message.content == text

        each_in_its_thread(server, agent)

    assert_each_owns_its_calls(server)


def test_a_client_made_for_an_earlier_rollout_serves_a_later_one(server: RecordingServer) -> None:
    earlier = server.scope("earlier")
    with OpenAI(base_url=earlier.base_url, api_key=earlier.api_key) as client:

        def agent(rollout: str) -> None:
            for said in SAID:
                client.chat.completions.create(model="policy", messages=messages(f"{rollout} {said}"))

        each_in_its_thread(server, agent)

    assert_each_owns_its_calls(server)


async def test_a_retry_is_a_new_call_of_the_same_request(server: RecordingServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="mine", max_retries=3) as client:

        async def agent(rollout: str) -> None:
            await client.chat.completions.create(model="policy", messages=messages(f"{rollout} refuse=2"))

        await each_in_its_scope(server, agent)

    for rollout in ROLLOUTS:
        tries = [request for request in server.received if request.headers["x-spangrad-rollout"] == rollout]
        assert [request.status for request in tries] == [429, 429, 200]
        assert [request.headers["x-stainless-retry-count"] for request in tries] == ["0", "1", "2"]
        assert len({request.headers["x-spangrad-call"] for request in tries}) == 3
        assert len({request.headers["x-spangrad-request"] for request in tries}) == 1
    assert len({request.headers["x-spangrad-request"] for request in server.received}) == len(ROLLOUTS)


def test_nested_scopes_give_each_call_to_the_innermost(server: RecordingServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="mine") as client, use_scope(server.scope("outer")):
        client.chat.completions.create(model="policy", messages=messages("before"))
        with use_scope(server.scope("inner")):
            client.chat.completions.create(model="policy", messages=messages("inside"))
        client.chat.completions.create(model="policy", messages=messages("after"))

    assert [(request.said, request.headers["x-spangrad-rollout"]) for request in server.received] == [
        ("before", "outer"),
        ("inside", "inner"),
        ("after", "outer"),
    ]
