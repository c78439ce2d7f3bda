"""All integrations in one process: agents of one framework run inside tools of another, and side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
from agents.models import openai_provider
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from spangrad.plugins import load_plugins
from spangrad.testing import ContractEndpoint, ScriptedPrompt, tool_call_text
from spangrad.testing._contract._checks import check_transitions
from spangrad.testing._contract._expect import same
from spangrad.testing._contract._span_tree import plain
from spangrad.testing._contract._stage import Stage, open_stage

QUESTION = "What is it like?"


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """A gateway, with everything attached as the runner attaches it."""
    # The Agents SDK shares one HTTP client for the whole process; each test has an event loop of its own.
    monkeypatch.setattr(openai_provider, "_http_client", None)
    async with open_stage(tmp_path) as stage:
        with load_plugins().attached():
            yield stage
        client, openai_provider._http_client = openai_provider._http_client, None
        if client is not None:
            await client.aclose()


class Frameworks:
    """One agent in each framework's own idiom, and how to ask it."""

    def __init__(self, endpoint: ContractEndpoint) -> None:
        settings: dict[str, Any] = {"base_url": endpoint.base_url, "api_key": endpoint.api_key}
        self.plain = AsyncOpenAI(**settings)
        endpoint.on_close(self.plain.close)
        information = ModelInfo(
            vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown"
        )
        self.autogen = OpenAIChatCompletionClient(model=endpoint.model, model_info=information, **settings)
        endpoint.on_close(self.autogen.close)
        # LangChain would keep one HTTP client for each address; a later test may get the same port, on another event loop.
        connections = DefaultAsyncHttpxClient()
        endpoint.on_close(connections.aclose)
        self.langchain = ChatOpenAI(model=endpoint.model, http_async_client=connections, **settings)
        provider = OpenAIProvider(use_responses=False, **settings)
        self.agents = RunConfig(model_provider=provider, model=endpoint.model)

    async def ask_plain(self, question: str) -> str:
        """Without a framework."""
        answer = await self.plain.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": question}]
        )
        return answer.choices[0].message.content or ""

    async def ask_autogen(self, question: str, name: str = "autogen", tools: Sequence[Any] = ()) -> str:
        """An `AssistantAgent`."""
        agent = AssistantAgent(name, self.autogen, tools=list(tools), max_tool_iterations=3)
        message = (await agent.run(task=question)).messages[-1]
        assert isinstance(message, TextMessage)
        return message.content

    async def ask_langchain(self, question: str, name: str = "langchain", tools: Sequence[Any] = ()) -> str:
        """An agent of `create_agent`."""
        agent: Any = create_agent(self.langchain, tools=list(tools), name=name)
        return str((await agent.ainvoke({"messages": [HumanMessage(question)]}))["messages"][-1].content)

    async def ask_agents(self, question: str, name: str = "agents", tools: Sequence[Any] = ()) -> str:
        """An agent of the Agents SDK."""
        agent = Agent[Any](name=name, tools=list(tools))
        return str((await Runner.run(agent, question, run_config=self.agents)).final_output)


# agents inside tools of other frameworks


async def test_agents_of_three_frameworks_inside_each_other(stage: Stage) -> None:
    frameworks = Frameworks(stage.endpoint)

    async def research(topic: str) -> str:
        """Asks the researcher."""
        return await frameworks.ask_langchain(topic, "researcher", [look_up])

    @tool
    async def look_up(word: str) -> str:
        """Asks the librarian."""
        return await frameworks.ask_agents(word, "librarian")

    stage.answers(
        (tool_call_text("research", topic="rain"), tool_call_text("look_up", word="rain"), "wet", "it is wet", "Wet."),
    )
    async with stage.rollout():
        assert await frameworks.ask_autogen(QUESTION, "writer", [research]) == "Wet."

    assert stage.agents() == ["writer", "researcher", "librarian", "researcher", "writer"]
    expected = """
        invoke_agent writer
          call writer
          execute_tool research
            invoke_agent researcher
              invoke_node model
                call researcher
              invoke_node tools
                execute_tool look_up
                  invoke_agent librarian
                    call librarian
              invoke_node model
                call researcher
          call writer
    """
    same(stage.tree(), plain(expected), "The spans")
    check_transitions(stage, calls=5)


async def test_the_other_way_round(stage: Stage) -> None:
    frameworks = Frameworks(stage.endpoint)

    @function_tool
    async def research(topic: str) -> str:
        """Asks the researcher."""
        return await frameworks.ask_autogen(topic, "researcher", [look_up])

    async def look_up(word: str) -> str:
        """Asks the librarian."""
        return await frameworks.ask_langchain(word, "librarian")

    stage.answers(
        (tool_call_text("research", topic="rain"), tool_call_text("look_up", word="rain"), "wet", "it is wet", "Wet."),
    )
    async with stage.rollout():
        assert await frameworks.ask_agents(QUESTION, "writer", [research]) == "Wet."

    assert stage.agents() == ["writer", "researcher", "librarian", "researcher", "writer"]
    expected = """
        invoke_agent writer
          call writer
          execute_tool research
            invoke_agent researcher
              call researcher
              execute_tool look_up
                invoke_agent librarian
                  invoke_node model
                    call librarian
              call researcher
          call writer
    """
    same(stage.tree(), plain(expected), "The spans")
    check_transitions(stage, calls=5)


async def test_a_plain_call_in_a_tool_is_the_calling_agents_and_lies_below_the_tool(stage: Stage) -> None:
    frameworks = Frameworks(stage.endpoint)

    async def consult(topic: str) -> str:
        """Asks a model."""
        return await frameworks.ask_plain(topic)

    asks: list[Callable[[], Any]] = [
        lambda: frameworks.ask_autogen(QUESTION, "writer", [consult]),
        lambda: frameworks.ask_langchain(QUESTION, "writer", [tool(consult)]),
        lambda: frameworks.ask_agents(QUESTION, "writer", [function_tool(consult)]),
    ]
    for number, ask in enumerate(asks):
        stage.answers((tool_call_text("consult", topic="rain"), "wet", "Wet."))
        async with stage.rollout(str(number)):
            assert await ask() == "Wet."
        assert stage.agents(str(number)) == ["writer"] * 3
        (consulting,) = stage.named("execute_tool consult", str(number))
        (below,) = [
            span
            for span in stage.spans(str(number))
            if span.parent is not None and span.parent.span_id == consulting.context.span_id
        ]
        assert below.name == "openai.chat"


# side by side


async def test_rollouts_that_use_all_frameworks_at_once_own_their_calls(stage: Stage) -> None:
    frameworks = Frameworks(stage.endpoint)
    asks: dict[str | None, Callable[[str], Awaitable[str]]] = {
        "autogen": frameworks.ask_autogen,
        "langchain": frameworks.ask_langchain,
        "agents": frameworks.ask_agents,
        None: frameworks.ask_plain,
    }

    async def one(rollout: str) -> None:
        async with stage.rollout(rollout):
            answers = await asyncio.gather(*(ask(f"{rollout} {name}") for name, ask in asks.items()))
        assert answers == [f"You said: {rollout} {name}" for name in asks]

    rollouts = [f"rollout-{number}" for number in range(8)]
    await asyncio.gather(*(one(rollout) for rollout in rollouts))

    assert stage.calls(None) == []
    for rollout in rollouts:
        made = dict(zip(stage.questions(rollout), stage.agents(rollout), strict=True))
        assert made == {f"{rollout} {name}": name for name in asks}
        check_transitions(stage, rollout, calls=4)
        expected = """
            call None
            invoke_agent agents
              call agents
            invoke_agent autogen
              call autogen
            invoke_agent langchain
              invoke_node model
                call langchain
        """
        same(stage.tree(rollout, ordered=False), plain(expected), f"The spans of {rollout}")


async def test_an_agent_asked_after_anothers_tool_call_is_below_its_own_work(stage: Stage) -> None:
    """What one framework has open must not be taken for the place of another one's work that merely comes later."""
    frameworks = Frameworks(stage.endpoint)
    stage.answers(lambda prompt: f"{first_word(prompt)}!")
    async with stage.rollout():
        for ask in (frameworks.ask_autogen, frameworks.ask_langchain, frameworks.ask_agents, frameworks.ask_plain):
            assert await ask("wet") == "wet!"
    expected = """
        invoke_agent autogen
          call autogen
        invoke_agent langchain
          invoke_node model
            call langchain
        invoke_agent agents
          call agents
        call None
    """
    same(stage.tree(), plain(expected), "The spans")


def first_word(prompt: ScriptedPrompt) -> str:
    """Of what the user said."""
    return prompt.last.split()[0]
