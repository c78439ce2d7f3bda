"""Many rollouts at once share agents, clients and threads, and each owns exactly its calls and its work."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, Runner, function_tool
from integrations.openai_agents.tests.conftest import in_thread, tool_call
from openai import OpenAI

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

    from spangrad.testing import ScriptedPrompt

pytestmark = pytest.mark.usefixtures("attached", "api")

ROLLOUTS = [f"rollout {number}" for number in range(8)]


@function_tool
def shout(text: str) -> str:
    """Shouts, in a thread of the SDK's."""
    return text.upper()


expert = Agent(name="expert", instructions="Finish.")
front = Agent(name="front", instructions="Begin.", tools=[shout], handoffs=[expert])


def script(prompt: ScriptedPrompt) -> str:
    """A tool call, a handoff, and then the answer; each names the rollout it is for."""
    question = next(message["content"] for message in prompt.messages if message["role"] == "user")
    said = "".join(message["content"] for message in prompt.messages if message["role"] in {"assistant", "tool"})
    if "Finish." in "".join(message["content"] for message in prompt.messages[:2]):
        return f"done: {question}"
    return tool_call("transfer_to_expert") if question.upper() in said else tool_call("shout", text=question)


def check(stage: Stage) -> None:
    for rollout in ROLLOUTS:
        assert stage.trained(rollout) == ["front", "front", "expert"]
        assert stage.tree(rollout) == [
            "invoke_agent front",
            "  execute_tool shout",
            "  handoff expert",
            "invoke_agent expert",
        ]
        assert stage.said("execute_tool shout", rollout)["gen_ai.tool.call.result"] == rollout.upper()
    assert stage.store.calls(None) == []


async def test_tasks(stage: Stage) -> None:
    stage.script = script

    async def one(rollout: str) -> Any:
        with stage.rollout(rollout):
            return (await Runner.run(front, rollout)).final_output

    said = await asyncio.gather(*(one(rollout) for rollout in ROLLOUTS))

    assert said == [f"done: {rollout}" for rollout in ROLLOUTS]
    check(stage)


async def test_streams(stage: Stage) -> None:
    stage.script = script

    async def one(rollout: str) -> Any:
        with stage.rollout(rollout):
            result = Runner.run_streamed(front, rollout)
            async for _ in result.stream_events():
                pass
            return result.final_output

    said = await asyncio.gather(*(one(rollout) for rollout in ROLLOUTS))

    assert said == [f"done: {rollout}" for rollout in ROLLOUTS]
    check(stage)


async def test_synchronous_runs_each_in_a_thread_of_its_own(stage: Stage) -> None:
    stage.script = script

    def one(rollout: str) -> Any:
        with stage.rollout(rollout):
            return Runner.run_sync(front, rollout).final_output

    said = await asyncio.gather(*(in_thread(one, rollout) for rollout in ROLLOUTS))

    assert said == [f"done: {rollout}" for rollout in ROLLOUTS]
    check(stage)


async def test_synchronous_runs_one_after_the_other_each_in_a_new_thread(stage: Stage) -> None:
    stage.script = script

    def one(rollout: str) -> Any:
        with stage.rollout(rollout):
            return Runner.run_sync(front, rollout).final_output

    for rollout in ROLLOUTS:
        with ThreadPoolExecutor(1):
            assert await in_thread(one, rollout) == f"done: {rollout}"

    check(stage)


async def test_a_call_from_a_plain_thread_of_a_tool_is_the_rollouts(stage: Stage) -> None:
    @function_tool
    def ask(text: str) -> str:
        """Asks the model from a pool's thread."""

        def call() -> str:
            with OpenAI() as client:
                answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
            return answer.choices[0].message.content or ""

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    stage.answers(tool_call("ask", text="why?"), "because", "Because.")

    with stage.rollout():
        await Runner.run(Agent(name="asker", tools=[ask]), "go")

    assert len(stage.trained()) == 3
    assert stage.store.calls(None) == []
