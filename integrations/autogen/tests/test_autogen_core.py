"""Agents of AutoGen's core API, as its documentation writes them, on a runtime: nothing in them knows of spangrad."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from autogen_core import (
    AgentId,
    CancellationToken,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    default_subscription,
    message_handler,
)
from autogen_core.models import ChatCompletionClient, LLMMessage, SystemMessage, UserMessage
from autogen_core.tool_agent import ToolAgent, tool_agent_caller_loop
from autogen_core.tools import FunctionTool, Tool, ToolSchema
from integrations.autogen.tests.conftest import lines, tool_call

from spangrad.capture import use_scope

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")


@dataclass
class Message:
    content: str


class SimpleAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient) -> None:
        super().__init__("A simple agent")
        self._system_messages = [SystemMessage(content="You are a helpful AI assistant.")]
        self._model_client = model_client

    @message_handler
    async def handle_user_message(self, message: Message, ctx: MessageContext) -> Message:
        user_message = UserMessage(content=message.content, source="user")
        response = await self._model_client.create(
            [*self._system_messages, user_message], cancellation_token=ctx.cancellation_token
        )
        assert isinstance(response.content, str)
        return Message(content=response.content)


async def test_an_agent_on_a_runtime_is_known_by_its_type(stage: Stage) -> None:
    client = stage.client()

    with stage.rollout():
        runtime = SingleThreadedAgentRuntime()
        await SimpleAgent.register(runtime, "simple_agent", lambda: SimpleAgent(client))
        runtime.start()
        answer = await runtime.send_message(Message("Hello!"), AgentId("simple_agent", "default"))
        await runtime.stop()

    assert answer == Message("You said: Hello!")
    assert stage.agents() == ["simple_agent"]
    assert stage.tree() == "invoke_agent simple_agent\n  openai.chat"
    span = stage.span("invoke_agent simple_agent")
    assert (span.attributes or {})["spangrad.framework.run_id"] == "simple_agent/default"


class ToolUseAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient, tool_schema: list[ToolSchema], tool_agent_type: str) -> None:
        super().__init__("An agent with tools")
        self._model_client = model_client
        self._tool_schema = tool_schema
        self._tool_agent_id = AgentId(tool_agent_type, self.id.key)

    @message_handler
    async def handle_user_message(self, message: Message, ctx: MessageContext) -> Message:
        session: list[LLMMessage] = [UserMessage(content=message.content, source="user")]
        schema: list[ToolSchema | Tool] = list(self._tool_schema)
        messages = await tool_agent_caller_loop(
            self,
            tool_agent_id=self._tool_agent_id,
            model_client=self._model_client,
            input_messages=session,
            tool_schema=schema,  # type: ignore[arg-type]  # AutoGen's own examples pass the same list
            cancellation_token=ctx.cancellation_token,
        )
        assert isinstance(messages[-1].content, str)
        return Message(content=messages[-1].content)


async def get_stock_price(ticker: str) -> float:
    """Returns the stock price."""
    if ticker == "NONE":
        raise LookupError(ticker)
    return 42.5


async def test_who_asks_another_agent_stands_above_it(stage: Stage) -> None:
    stage.answers(
        tool_call("get_stock_price", ticker="AAPL") + tool_call("get_stock_price", ticker="NONE"), "It is 42.5."
    )
    client = stage.client()
    tools: list[Tool] = [FunctionTool(get_stock_price, description="Get the stock price.")]

    with stage.rollout():
        runtime = SingleThreadedAgentRuntime()
        await ToolAgent.register(runtime, "tool_executor_agent", lambda: ToolAgent("tool executor agent", tools))
        await ToolUseAgent.register(
            runtime,
            "tool_use_agent",
            lambda: ToolUseAgent(client, [tool.schema for tool in tools], "tool_executor_agent"),
        )
        runtime.start()
        answer = await runtime.send_message(Message("AAPL?"), AgentId("tool_use_agent", "default"))
        await runtime.stop()

    assert answer == Message("It is 42.5.")
    assert stage.agents() == ["tool_use_agent", "tool_use_agent"]
    assert stage.tree() == lines(
        "invoke_agent tool_use_agent",
        "  openai.chat",
        "  invoke_agent tool_executor_agent",
        "    execute_tool get_stock_price",
        "  invoke_agent tool_executor_agent",
        "    execute_tool get_stock_price",
        "  openai.chat",
    )
    good, bad = [span.attributes or {} for span in stage.kept() if span.name == "execute_tool get_stock_price"]
    assert (good["gen_ai.tool.call.arguments"], good["gen_ai.tool.call.result"]) == ('{"ticker": "AAPL"}', 42.5)
    assert (bad["gen_ai.tool.call.arguments"], bad["error.type"]) == ('{"ticker": "NONE"}', "LookupError")


@dataclass
class Draft:
    content: str


@dataclass
class Review:
    content: str


@default_subscription
class CoderAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient) -> None:
        super().__init__("Writes.")
        self._model_client = model_client

    async def _answer(self, text: str) -> None:
        response = await self._model_client.create([UserMessage(content=text, source="user")])
        await self.publish_message(Draft(str(response.content)), DefaultTopicId())

    @message_handler
    async def handle_task(self, message: Message, _ctx: MessageContext) -> None:
        await self._answer(message.content)

    @message_handler
    async def handle_review(self, message: Review, _ctx: MessageContext) -> None:
        if "APPROVE" not in message.content:
            await self._answer(message.content)


@default_subscription
class ReviewerAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient) -> None:
        super().__init__("Reviews.")
        self._model_client = model_client

    @message_handler
    async def handle_draft(self, message: Draft, _ctx: MessageContext) -> None:
        response = await self._model_client.create([UserMessage(content=message.content, source="user")])
        await self.publish_message(Review(str(response.content)), DefaultTopicId())


async def register_reflection(runtime: SingleThreadedAgentRuntime, client: ChatCompletionClient) -> None:
    await CoderAgent.register(runtime, "coder", lambda: CoderAgent(client))
    await ReviewerAgent.register(runtime, "reviewer", lambda: ReviewerAgent(client))


async def test_who_publishes_stands_beside_those_that_answer(stage: Stage) -> None:
    stage.answers("x = 1", "Name it.", "one = 1", "APPROVE")
    client = stage.client()

    with stage.rollout():
        runtime = SingleThreadedAgentRuntime()
        await register_reflection(runtime, client)
        runtime.start()
        await runtime.publish_message(Message("Code!"), DefaultTopicId())
        await runtime.stop_when_idle()

    assert stage.agents() == ["coder", "reviewer", "coder", "reviewer"]
    assert stage.tree() == lines(
        "invoke_agent coder",
        "  openai.chat",
        "invoke_agent reviewer",
        "  openai.chat",
        "invoke_agent coder",
        "  openai.chat",
        "invoke_agent reviewer",
        "  openai.chat",
    )


async def test_rollouts_that_share_a_runtime_own_exactly_their_messages_calls(stage: Stage) -> None:
    client = stage.client()
    runtime = SingleThreadedAgentRuntime()
    await SimpleAgent.register(runtime, "simple_agent", lambda: SimpleAgent(client))
    names = [f"rollout-{number}" for number in range(8)]

    async def one(name: str) -> None:
        with stage.rollout(name):
            await runtime.send_message(Message(name), AgentId("simple_agent", name))
            await runtime.send_message(Message(name), AgentId("simple_agent", "shared"))

    with stage.rollout("starter"):
        runtime.start()
    await asyncio.gather(*(one(name) for name in names))
    await runtime.stop()

    for name in names:
        assert stage.agents(name) == ["simple_agent", "simple_agent"]
        assert {call.request["messages"][-1]["content"] for call in stage.calls(name)} == {name}
    assert stage.calls("starter") == []
    assert stage.store.calls(None) == []


async def test_a_message_published_on_a_shared_runtime_stays_with_its_rollout(stage: Stage) -> None:
    client = stage.client()
    runtime = SingleThreadedAgentRuntime()
    await register_reflection(runtime, client)
    stage.script = lambda prompt: "APPROVE" if prompt.last.startswith("Draft of") else f"Draft of {prompt.last}"
    runtime.start()

    for name in ("first", "second"):
        with stage.rollout(name):
            await runtime.publish_message(Message(name), DefaultTopicId())
    await runtime.stop_when_idle()

    for name in ("first", "second"):
        assert stage.agents(name) == ["coder", "reviewer"]
        assert stage.calls(name)[0].request["messages"][0]["content"] == name


async def test_a_tool_run_by_hand_is_recorded_by_itself(stage: Stage) -> None:
    tool = FunctionTool(get_stock_price, description="Get the stock price.")

    with stage.rollout():
        value = await tool.run_json({"ticker": "AAPL"}, CancellationToken())

    assert value == 42.5
    assert stage.tree() == "execute_tool get_stock_price"


async def test_a_message_from_outside_belongs_to_the_rollout_the_runtime_was_started_in(stage: Stage) -> None:
    runtime = SingleThreadedAgentRuntime()
    await SimpleAgent.register(runtime, "simple_agent", lambda: SimpleAgent(stage.client()))
    with stage.rollout():
        runtime.start()
    await runtime.send_message(Message("Hello!"), AgentId("simple_agent", "default"))
    await runtime.stop()

    assert stage.agents() == ["simple_agent"]
    assert stage.store.calls(None) == []


async def test_a_runtime_started_in_no_scope_leaves_messages_from_outside_to_nobody(stage: Stage) -> None:
    runtime = SingleThreadedAgentRuntime()
    await SimpleAgent.register(runtime, "simple_agent", lambda: SimpleAgent(stage.client()))
    with stage.rollout():
        with use_scope(None):
            runtime.start()
        await runtime.send_message(Message("Mine!"), AgentId("simple_agent", "default"))
    await runtime.send_message(Message("Hello!"), AgentId("simple_agent", "default"))
    await runtime.stop()

    assert [call.request["messages"][-1]["content"] for call in stage.calls()] == ["Mine!"]
    assert [call.request["messages"][-1]["content"] for call in stage.store.calls(None)] == ["Hello!"]
