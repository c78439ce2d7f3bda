"""The contract, kept by AutoGen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import (
    AgentId,
    CancellationToken,
    InMemoryStore,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import ChatCompletionClient, UserMessage
from autogen_core.tools import FunctionTool, TextResultContent, ToolResult, ToolSchema
from autogen_ext.models.cache import CHAT_CACHE_VALUE_TYPE, ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient
from integrations.autogen.tests.conftest import MODEL_INFO, PlainWorkbench
from pydantic import BaseModel

from spangrad.plugins import Integration
from spangrad.testing import ContractEndpoint, IntegrationContract, ReferenceRun, Structure, tool_call_text
from spangrad_autogen import AutoGenIntegration


class Answer(BaseModel):
    word: str
    number: int


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b


def fail(reason: str) -> str:
    """Fails."""
    raise LookupError(reason)


def client(endpoint: ContractEndpoint, *, close: bool = True, **options: Any) -> OpenAIChatCompletionClient:
    settings = {"model": endpoint.model, "base_url": endpoint.base_url, "api_key": endpoint.api_key, **options}
    made = OpenAIChatCompletionClient(model_info=MODEL_INFO, **settings)
    if close:
        endpoint.on_close(made.close)
    return made


@dataclass
class Solver:
    """What all rollouts share. An agent of AutoGen keeps its conversation, so each question gets one of its own."""

    client: ChatCompletionClient
    tools: Sequence[Any] = ()

    def agent(self, *, streams: bool = False) -> AssistantAgent:
        return AssistantAgent(
            "solver", self.client, tools=list(self.tools), max_tool_iterations=5, model_client_stream=streams
        )


@dataclass
class Question:
    text: str


class Asker(RoutedAgent):
    """An agent of the core API that answers by itself, or by asking another one."""

    def __init__(self, model_client: ChatCompletionClient, other: str = "") -> None:
        super().__init__("Answers.")
        self._model_client = model_client
        self._other = other

    @message_handler
    async def handle(self, message: Question, _ctx: MessageContext) -> Question:
        text = message.text
        if self._other:
            text = (await self.send_message(Question(text), AgentId(self._other, "default"))).text
        created = await self._model_client.create([UserMessage(content=text, source="user")])
        return Question(str(created.content))


def text_of(result: TaskResult) -> str:
    message = result.messages[-1]
    assert isinstance(message, TextMessage)
    return message.content


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # AutoGen dumps openai's parsed answers so
class TestAutoGenContract(IntegrationContract):
    packages = ("autogen_core", "autogen_agentchat", "autogen_ext")
    ways = ("run", "run_stream", "on_messages", "on_messages_stream")
    batch_ways = ("gather",)
    stream_ways = ("run_stream", "on_messages_stream")
    structured_modes = ("output_content_type", "output_content_type streamed", "json_object")
    structures: ClassVar[Mapping[str, Structure]] = {
        "team": Structure(
            answers=("a draft", "Shorter.", "a text", "APPROVE"),
            agents=("primary", "critic", "primary", "critic"),
            tree="""
                invoke_node RoundRobinGroupChat
                  invoke_agent primary
                    call primary
                  invoke_agent critic
                    call critic
                  invoke_agent primary
                    call primary
                  invoke_agent critic
                    call critic
            """,
        ),
        "selected team": Structure(
            answers=("planner", "a plan", "writer", "a text"),
            agents=("SelectorGroupChatManager", "planner", "SelectorGroupChatManager", "writer"),
            tree="""
                invoke_node SelectorGroupChat
                  invoke_agent SelectorGroupChatManager
                    call SelectorGroupChatManager
                  invoke_agent planner
                    call planner
                  invoke_agent SelectorGroupChatManager
                    call SelectorGroupChatManager
                  invoke_agent writer
                    call writer
            """,
        ),
        "handoff": Structure(
            answers=(tool_call_text("transfer_to_expert"), "42"),
            agents=("front", "expert"),
            tree="""
                invoke_node Swarm
                  invoke_agent front
                    call front
                    handoff expert
                  invoke_agent expert
                    call expert
            """,
            attributes={"handoff expert": {"spangrad.handoff.target": "expert", "gen_ai.agent.name": "front"}},
        ),
        "agent as a tool": Structure(
            answers=(tool_call_text("researcher", task="rain"), "it rains", "Rain, it says."),
            agents=("writer", "researcher", "writer"),
            tree="""
                invoke_agent writer
                  call writer
                  execute_tool researcher
                    invoke_agent researcher
                      call researcher
                  call writer
            """,
            attributes={
                "execute_tool researcher": {"gen_ai.tool.call.result": "it rains", "gen_ai.agent.name": "writer"}
            },
        ),
        "team inside an agent": Structure(
            answers=("a draft", "APPROVE", "a text"),
            agents=("primary", "critic", "society"),
            tree="""
                invoke_agent society
                  invoke_node RoundRobinGroupChat
                    invoke_agent primary
                      call primary
                    invoke_agent critic
                      call critic
                  call society
            """,
        ),
        "branches": Structure(
            answers=lambda prompt: f"on {prompt.messages[0]['content']}",
            agents=("start", "left", "right"),
            tree="""
                invoke_node GraphFlow
                  invoke_agent start
                    call start
                  invoke_agent left
                    call left
                  invoke_agent right
                    call right
            """,
            ordered=False,
        ),
        "agents on a runtime": Structure(
            answers=("a plan", "a text"),
            agents=("planner", "writer"),
            tree="""
                invoke_agent writer
                  invoke_agent planner
                    call planner
                  call writer
            """,
            attributes={"invoke_agent planner": {"spangrad.framework.run_id": "planner/default"}},
        ),
    }
    threads_share = False
    has_cache = True
    has_judge = True

    def integration(self) -> Integration:
        return AutoGenIntegration()

    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Solver:
        return Solver(client(endpoint), (add, multiply, FunctionTool(fail, "Fails.")) if tools else ())

    async def ask(self, solver: Solver, way: str, question: str) -> str:
        if way == "run":
            return text_of(await solver.agent().run(task=question))
        if way == "on_messages":
            asked = [TextMessage(content=question, source="user")]
            response = await solver.agent().on_messages(asked, CancellationToken())
            assert isinstance(response.chat_message, TextMessage)
            return response.chat_message.content
        return [text async for text in texts(solver.agent(), way, question)][-1]

    def thread_solver(self, endpoint: ContractEndpoint) -> Solver:
        return Solver(client(endpoint, close=False))  # whose connections are of the loop that asks

    def ask_sync(self, solver: Solver, question: str) -> str:
        async def run() -> str:
            try:
                return await self.ask(solver, "run", question)
            finally:
                await solver.client.close()

        return asyncio.run(run())

    async def batch(self, solver: Solver, way: str, questions: Sequence[str]) -> list[str]:
        del way
        return list(await asyncio.gather(*(self.ask(solver, "run", question) for question in questions)))

    async def stream(self, solver: Solver, way: str, question: str) -> list[str]:
        agent = solver.agent(streams=True)
        return [text async for text in texts(agent, way, question, chunks=True)]

    async def close_early(self, solver: Solver, way: str, question: str) -> None:
        stream = texts(solver.agent(streams=True), way, question, chunks=True)
        async for _ in stream:
            break

    async def structured(self, endpoint: ContractEndpoint, mode: str, question: str) -> Mapping[str, Any]:
        if mode == "json_object":
            agent = AssistantAgent("solver", client(endpoint, response_format={"type": "json_object"}))
            return dict(json.loads(text_of(await agent.run(task=question))))
        agent = AssistantAgent(
            "solver", client(endpoint), output_content_type=Answer, model_client_stream=mode.endswith("streamed")
        )
        message = (await agent.run(task=question)).messages[-1]
        return dict(message.model_dump()["content"])

    async def run_structure(self, endpoint: ContractEndpoint, name: str, question: str) -> str:
        return await STRUCTURES[name](client(endpoint), question)

    async def cached_solver(self, endpoint: ContractEndpoint) -> Solver:
        return Solver(ChatCompletionCache(client(endpoint), InMemoryStore[CHAT_CACHE_VALUE_TYPE]()))

    async def judged(self, endpoint: ContractEndpoint, question: str) -> str:
        judge = client(endpoint, model=endpoint.judge)
        team = RoundRobinGroupChat(
            [AssistantAgent("solver", client(endpoint)), AssistantAgent("judge", judge)],
            termination_condition=TextMentionTermination("fine", sources=["judge"]),
        )
        messages = (await team.run(task=question)).messages
        return next(
            message.content for message in messages if isinstance(message, TextMessage) and message.source == "solver"
        )

    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        agent = AssistantAgent(
            "solver",
            client(endpoint),
            workbench=Measuring(run),
            system_message=run.system,
            max_tool_iterations=2,
        )
        return text_of(await agent.run(task=run.question))


async def texts(agent: AssistantAgent, way: str, question: str, *, chunks: bool = False) -> AsyncIterator[str]:
    """What an agent says as a stream: the pieces it gets from the model, or its messages."""
    if way == "run_stream":
        stream: Any = agent.run_stream(task=question)
    else:
        stream = agent.on_messages_stream([TextMessage(content=question, source="user")], CancellationToken())
    async for item in stream:
        message = item.chat_message if isinstance(item, Response) else item
        if isinstance(message, ModelClientStreamingChunkEvent if chunks else TextMessage):
            yield message.content


class Measuring(PlainWorkbench):
    """The reference conversation's tool, with the schema it has to have."""

    def __init__(self, run: ReferenceRun) -> None:
        self._run = run

    async def list_tools(self) -> list[ToolSchema]:
        shown = self._run.tool["function"]
        return [ToolSchema(name=shown["name"], description=shown["description"], parameters=shown["parameters"])]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        del cancellation_token, call_id
        return ToolResult(name=name, result=[TextResultContent(content=self._run.call_tool(arguments or {}))])


def reflecting(model_client: ChatCompletionClient) -> RoundRobinGroupChat:
    approved = TextMentionTermination("APPROVE", sources=["critic"])
    return RoundRobinGroupChat(
        [AssistantAgent("primary", model_client), AssistantAgent("critic", model_client)],
        termination_condition=approved,
    )


async def team(model_client: ChatCompletionClient, question: str) -> str:
    return text_of(await reflecting(model_client).run(task=question))


async def selected_team(model_client: ChatCompletionClient, question: str) -> str:
    chat = SelectorGroupChat(
        [AssistantAgent("planner", model_client), AssistantAgent("writer", model_client)],
        model_client,
        termination_condition=MaxMessageTermination(3),
        allow_repeated_speaker=True,
    )
    return text_of(await chat.run(task=question))


async def handoff(model_client: ChatCompletionClient, question: str) -> str:
    front = AssistantAgent("front", model_client, handoffs=["expert"])
    expert = AssistantAgent("expert", model_client, handoffs=["front"])
    swarm = Swarm([front, expert], termination_condition=TextMentionTermination("42", sources=["expert"]))
    return text_of(await swarm.run(task=question))


async def agent_as_a_tool(model_client: ChatCompletionClient, question: str) -> str:
    researcher = AgentTool(AssistantAgent("researcher", model_client), return_value_as_last_message=True)
    writer = AssistantAgent("writer", model_client, tools=[researcher], max_tool_iterations=2)
    return text_of(await writer.run(task=question))


async def team_inside_an_agent(model_client: ChatCompletionClient, question: str) -> str:
    society = SocietyOfMindAgent("society", reflecting(model_client), model_client)
    return text_of(await society.run(task=question))


async def branches(model_client: ChatCompletionClient, question: str) -> str:
    start, left, right = (
        AssistantAgent(name, model_client, system_message=name) for name in ("start", "left", "right")
    )
    builder = DiGraphBuilder()
    builder.add_node(start).add_node(left).add_node(right).add_edge(start, left).add_edge(start, right)
    result = await GraphFlow([start, left, right], graph=builder.build()).run(task=question)
    return " ".join(sorted(message.content for message in result.messages if isinstance(message, TextMessage)))


async def agents_on_a_runtime(model_client: ChatCompletionClient, question: str) -> str:
    runtime = SingleThreadedAgentRuntime()
    await Asker.register(runtime, "planner", lambda: Asker(model_client))
    await Asker.register(runtime, "writer", lambda: Asker(model_client, "planner"))
    runtime.start()
    try:
        answer: Question = await runtime.send_message(Question(question), AgentId("writer", "default"))
    finally:
        await runtime.stop()
    return answer.text


STRUCTURES: Mapping[str, Callable[[ChatCompletionClient, str], Awaitable[str]]] = {
    "team": team,
    "selected team": selected_team,
    "handoff": handoff,
    "agent as a tool": agent_as_a_tool,
    "team inside an agent": team_inside_an_agent,
    "branches": branches,
    "agents on a runtime": agents_on_a_runtime,
}
