"""One agent's client, or one agent, shared by rollouts that run at the same time in every way Python offers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ChatCompletionClient
from integrations.autogen.tests.conftest import lines, tool_call
from openai import OpenAI

from spangrad.testing import ScriptedPrompt

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")

NAMES = [f"rollout-{number}" for number in range(8)]


async def count(word: str) -> int:
    """Counts letters."""
    await asyncio.sleep(0)
    return len(word)


def script(prompt: ScriptedPrompt) -> str:
    """Calls the tool with the question, then answers with what came back."""
    if prompt.messages[-1]["role"] == "tool":
        return f"{prompt.last} letters"
    return tool_call("count", word=prompt.last)


async def solve(name: str, client: ChatCompletionClient) -> None:
    agent = AssistantAgent("solver", client, tools=[count], reflect_on_tool_use=True)
    result = await agent.run(task=name)
    assert result.messages[-1].to_text() == "9 letters"


def check(stage: Stage) -> None:
    for name in NAMES:
        assert stage.agents(name) == ["solver", "solver"]
        assert {call.request["messages"][1]["content"] for call in stage.calls(name)} == {name}
        assert stage.tree(name) == lines(
            "invoke_agent solver",
            "  openai.chat",
            "  execute_tool count",
            "  openai.chat",
        )
    assert stage.store.calls(None) == []


async def test_tasks_that_share_a_client_own_their_calls(stage: Stage) -> None:
    stage.script = script
    client = stage.client()

    async def one(name: str) -> None:
        with stage.rollout(name):
            await solve(name, client)

    await asyncio.gather(*(one(name) for name in NAMES))

    check(stage)


def in_executor(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


def in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("start", [in_executor, in_threads])
async def test_threads_that_each_run_a_loop_own_their_calls(
    stage: Stage, start: Callable[[list[Callable[[], None]]], None]
) -> None:
    stage.script = script

    def one(name: str) -> None:
        async def run() -> None:
            client = stage.client()
            with stage.rollout(name):
                await solve(name, client)
            stage.clients.remove(client)
            await client.close()

        asyncio.run(run())

    await asyncio.to_thread(start, [lambda name=name: one(name) for name in NAMES])  # type: ignore[misc]  # mypy cannot infer it

    check(stage)


async def test_threads_started_by_an_agents_tool_belong_to_the_tool(stage: Stage) -> None:
    url = f"{stage.gateway.base_url}/v1"

    def ask() -> None:
        with OpenAI(base_url=url, api_key="mine") as client:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "sub-question"}])

    async def search(question: str) -> str:
        """Searches."""
        await asyncio.to_thread(ask)
        thread = threading.Thread(target=ask)
        thread.start()
        await asyncio.to_thread(thread.join)
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, ask)
        return question

    stage.answers(tool_call("search", question="who?"), "a", "b", "c", "Found.")
    agent = AssistantAgent("solver", stage.client(), tools=[search], reflect_on_tool_use=True)

    with stage.rollout():
        await agent.run(task="who?")

    assert stage.agents() == ["solver"] * 5
    assert stage.tree() == lines(
        "invoke_agent solver",
        "  openai.chat",
        "  execute_tool search",
        *["    openai.chat"] * 3,
        "  openai.chat",
    )
