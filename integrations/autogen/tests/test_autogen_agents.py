"""Single agents, as AutoGen's documentation writes them: nothing in them knows of spangrad."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    TextMessage,
    ToolCallRequestEvent,
    ToolCallSummaryMessage,
)
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, UserMessage
from autogen_core.tools import FunctionTool, TextResultContent, ToolResult, ToolSchema
from integrations.autogen.tests.conftest import PlainWorkbench, lines, tool_call
from openai import OpenAI
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from pydantic import BaseModel

from spangrad.transitions import RewardRecord, RolloutRecord, RolloutStatus, extract

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")


async def get_weather(city: str) -> str:
    """Get the weather for a given city."""
    return f"The weather in {city} is 73 degrees and Sunny."


def quickstart(model_client: ChatCompletionClient) -> AssistantAgent:
    return AssistantAgent(
        name="weather_agent",
        model_client=model_client,
        tools=[get_weather],
        system_message="You are a helpful assistant.",
        reflect_on_tool_use=True,
        model_client_stream=True,
    )


def facts(span: ReadableSpan, prefix: str = "gen_ai.tool.") -> dict[str, Any]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith(prefix)}


async def test_the_quickstart_gives_two_transitions_and_a_tool_call(stage: Stage) -> None:
    stage.answers(tool_call("get_weather", city="New York"), "It is sunny.")
    agent = quickstart(stage.client())

    with stage.rollout() as scope:
        result = await agent.run(task="What is the weather in New York?")

    assert result.messages[-1].to_text() == "It is sunny."
    assert stage.agents() == ["weather_agent", "weather_agent"]
    assert stage.tree() == lines(
        "invoke_agent weather_agent",
        "  openai.chat",
        "  execute_tool get_weather",
        "  openai.chat",
    )
    record = RolloutRecord(
        scope.rollout_id, 1, "task", "group", "train", 1, RolloutStatus.SUCCEEDED, "", "", started_at=0, finished_at=1
    )
    reward = RewardRecord(scope.rollout_id, 1, None, "reward", 1.0, "scope", at=1)
    transitions = extract(record, stage.calls(), [reward]).transitions
    assert [transition.agent for transition in transitions] == ["weather_agent", "weather_agent"]
    assert [transition.depth for transition in transitions] == [0, 1]


async def test_a_tool_call_is_recorded_with_id_arguments_and_result(stage: Stage) -> None:
    stage.answers(tool_call("get_weather", city="New York"), "It is sunny.")

    with stage.rollout():
        result = await quickstart(stage.client()).run(task="What is the weather in New York?")

    (request,) = [message for message in result.messages if isinstance(message, ToolCallRequestEvent)]
    assert facts(stage.span("execute_tool get_weather")) == {
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": request.content[0].id,
        "gen_ai.tool.call.arguments": '{"city": "New York"}',
        "gen_ai.tool.call.result": "The weather in New York is 73 degrees and Sunny.",
    }


async def test_what_an_agent_streams_is_the_same_with_and_without_a_rollout(stage: Stage) -> None:
    async def kinds(agent: AssistantAgent) -> list[tuple[str, str]]:
        items = [item async for item in agent.run_stream(task="What is the weather in New York?")]
        assert isinstance(items[-1], TaskResult)
        return [(type(item).__name__, getattr(item, "content", "")) for item in items if hasattr(item, "to_text")]

    def clean(found: list[tuple[str, Any]]) -> list[tuple[str, str]]:
        return [(kind, content if isinstance(content, str) else "") for kind, content in found]

    stage.answers(*[tool_call("get_weather", city="New York"), "It is sunny."] * 2)
    outside = clean(await kinds(quickstart(stage.client())))
    with stage.rollout():
        inside = clean(await kinds(quickstart(stage.client())))

    assert inside == outside
    assert [kind for kind, _ in inside].count("ModelClientStreamingChunkEvent") >= 1
    assert stage.agents() == ["weather_agent"] * 2


def broken(reason: str) -> str:
    """Fails."""
    raise LookupError(reason)


async def double(number: int) -> int:
    """Doubles."""
    await asyncio.sleep(0)
    return 2 * number


async def test_parallel_tool_calls_of_every_kind_are_told_apart(stage: Stage) -> None:
    stage.answers(
        tool_call("double", number=4) + tool_call("broken", reason="no such book") + tool_call("double", number=5),
        "Done.",
    )
    agent = AssistantAgent(
        "solver", stage.client(), tools=[double, FunctionTool(broken, "Fails.")], reflect_on_tool_use=True
    )

    with stage.rollout():
        await agent.run(task="go")

    spans = [span for span in stage.kept() if span.name.startswith("execute_tool")]
    assert [(facts(span)["gen_ai.tool.call.arguments"], facts(span)["gen_ai.tool.call.result"]) for span in spans] == [
        ('{"number": 4}', "8"),
        ('{"reason": "no such book"}', "no such book"),
        ('{"number": 5}', "10"),
    ]
    assert len({facts(span)["gen_ai.tool.call.id"] for span in spans}) == 3
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET]
    assert (spans[1].attributes or {})["error.type"] == "LookupError"
    assert len({span.parent and span.parent.span_id for span in spans}) == 1


async def test_a_model_call_in_a_synchronous_tool_belongs_to_the_tool(stage: Stage) -> None:
    base_url = f"{stage.gateway.base_url}/v1"

    def ask_again(question: str) -> str:
        """Asks the model."""
        with OpenAI(base_url=base_url, api_key="mine") as client:
            answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": question}])
        return answer.choices[0].message.content or ""

    stage.answers(tool_call("ask_again", question="really?"), "really", "So it is.")
    agent = AssistantAgent("solver", stage.client(), tools=[ask_again], reflect_on_tool_use=True)

    with stage.rollout():
        await agent.run(task="go")

    assert stage.agents() == ["solver"] * 3
    assert stage.tree() == lines(
        "invoke_agent solver",
        "  openai.chat",
        "  execute_tool ask_again",
        "    openai.chat",
        "  openai.chat",
    )


async def test_several_rounds_of_tools_are_calls_of_one_agent(stage: Stage) -> None:
    stage.answers(tool_call("double", number=4), tool_call("double", number=8), "16")
    agent = AssistantAgent("solver", stage.client(), tools=[double], max_tool_iterations=3)

    with stage.rollout():
        result = await agent.run(task="go")

    assert result.messages[-1].to_text() == "16"
    assert stage.tree() == lines(
        "invoke_agent solver",
        "  openai.chat",
        "  execute_tool double",
        "  openai.chat",
        "  execute_tool double",
        "  openai.chat",
    )


async def test_a_tool_of_a_name_the_agent_does_not_have_is_no_tool_call(stage: Stage) -> None:
    stage.answers(tool_call("triple", number=4))
    agent = AssistantAgent("solver", stage.client(), tools=[double])

    with stage.rollout():
        await agent.run(task="go")

    # The gateway leaves a call to an unknown tool in the answer's text.
    assert stage.tree() == "invoke_agent solver\n  openai.chat"


class Sum(BaseModel):
    left: int
    total: int


PARSED = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # AutoGen dumps openai's parsed answers so


@PARSED
async def test_structured_output_is_the_programs_own_type(stage: Stage) -> None:
    stage.answers('{"left": 4, "total": 9}')
    agent = AssistantAgent("solver", stage.client(), output_content_type=Sum)

    with stage.rollout():
        result = await agent.run(task="4+5?")

    message = result.messages[-1]
    assert isinstance(message, StructuredMessage)
    assert message.content == Sum(left=4, total=9)
    assert stage.agents() == ["solver"]


async def test_json_mode_of_a_bare_client_belongs_to_no_agent(stage: Stage) -> None:
    stage.answers('{"left": 4}')

    with stage.rollout():
        created = await stage.client().create([UserMessage(content="json, please", source="user")], json_output=True)

    assert created.content == '{"left": 4}'
    assert stage.agents() == [None]
    assert stage.tree() == "openai.chat"


async def test_on_messages_called_by_hand_is_the_agents_work(stage: Stage) -> None:
    stage.answers(tool_call("double", number=4))
    agent = AssistantAgent("solver", stage.client(), tools=[double])

    with stage.rollout():
        response = await agent.on_messages([TextMessage(content="go", source="user")], CancellationToken())

    assert isinstance(response.chat_message, ToolCallSummaryMessage)
    assert stage.tree() == "invoke_agent solver\n  openai.chat\n  execute_tool double"


class Relay(BaseChatAgent):
    """An agent of the program's own, after the documentation's "Custom Agents"."""

    def __init__(self, name: str, model_client: ChatCompletionClient) -> None:
        super().__init__(name, "Asks the model.")
        self._model_client = model_client

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken) -> Response:
        response: Response | None = None
        async for item in self.on_messages_stream(messages, cancellation_token):
            if isinstance(item, Response):
                response = item
        assert response is not None
        return response

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | Response, None]:
        created = await self._model_client.create(
            [UserMessage(content=messages[-1].to_model_text(), source="user")], cancellation_token=cancellation_token
        )
        yield ModelClientStreamingChunkEvent(content="...", source=self.name)
        yield Response(chat_message=TextMessage(content=str(created.content), source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        pass


async def test_an_agent_class_of_the_programs_own_is_recorded_however_it_is_called(stage: Stage) -> None:
    agent = Relay("relay", stage.client())
    hello = TextMessage(content="hello", source="user")

    with stage.rollout():
        await agent.run(task="hello")
        await agent.on_messages([hello], CancellationToken())
        items = [item async for item in agent.on_messages_stream([hello], CancellationToken())]

    assert [type(item).__name__ for item in items] == ["ModelClientStreamingChunkEvent", "Response"]
    assert stage.agents() == ["relay"] * 3
    assert stage.tree() == "\n".join(["invoke_agent relay", "  openai.chat"] * 3)


async def test_between_two_items_of_a_stream_the_reader_is_not_in_the_agent(stage: Stage) -> None:
    client = stage.client()
    agent = Relay("relay", client)

    with stage.rollout():
        async for _ in agent.run_stream(task="hello"):
            await client.create([UserMessage(content="the reader's own", source="user")])

    assert stage.agents() == [None, "relay", None, None, None]
    assert stage.tree().splitlines().count("  openai.chat") == 1


async def test_a_stream_that_is_left_early_is_closed_and_leaves_nothing_behind(stage: Stage) -> None:
    client = stage.client()
    agent = Relay("relay", client)

    with stage.rollout():
        async for item in agent.run_stream(task="hello"):
            if isinstance(item, ModelClientStreamingChunkEvent):
                break
        await client.create([UserMessage(content="afterwards", source="user")])

    assert stage.agents() == ["relay", None]
    assert stage.tree() == "invoke_agent relay\n  openai.chat\nopenai.chat"


async def test_an_error_of_the_model_is_the_agents_own_error(stage: Stage) -> None:
    stage.script = lambda _prompt: RuntimeError("out of memory")
    agent = AssistantAgent("solver", stage.client(max_retries=0))

    async def raised() -> str:
        with pytest.raises(Exception, match="out of memory") as caught:
            await agent.run(task="go")
        return f"{type(caught.value).__name__}: {caught.value}".replace(str(stage.gateway.base_url), "")

    outside = await raised()
    with stage.rollout():
        inside = await raised()

    assert inside.split(":")[0] == outside.split(":")[0]
    span = stage.span("invoke_agent solver")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == inside.split(":")[0]


async def test_a_cancelled_agent_is_recorded_as_such_and_the_cancellation_arrives(stage: Stage) -> None:
    token = CancellationToken()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def wait_for_ever() -> None:
        loop.call_soon_threadsafe(asked.set)
        await asyncio.Event().wait()

    stage.script = lambda _prompt: (wait_for_ever,)
    agent = AssistantAgent("solver", stage.client())

    with stage.rollout():
        running = asyncio.create_task(agent.run(task="go", cancellation_token=token))
        await asked.wait()
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert (stage.span("invoke_agent solver").attributes or {})["error.type"] == "CancelledError"


class Library(PlainWorkbench):
    """A library where nothing is found."""

    async def list_tools(self) -> list[ToolSchema]:
        return [ToolSchema(name="find", description="Finds.", parameters={"type": "object", "properties": {}})]

    async def call_tool(
        self,
        name: str,
        arguments: Any = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        del arguments, cancellation_token, call_id
        return ToolResult(name=name, result=[TextResultContent(content="not found")], is_error=True)


async def test_a_workbench_of_the_programs_own_is_recorded_by_an_agent_and_by_itself(stage: Stage) -> None:
    stage.answers(tool_call("find"))
    agent = AssistantAgent("solver", stage.client(), workbench=Library())

    with stage.rollout():
        await agent.run(task="go")
        await Library().call_tool("find", {"title": "Ulysses"})

    inside, alone = [span for span in stage.kept() if span.name == "execute_tool find"]
    assert inside.parent is not None
    assert alone.parent is None
    assert facts(alone) == {
        "gen_ai.tool.name": "find",
        "gen_ai.tool.call.arguments": '{"title": "Ulysses"}',
        "gen_ai.tool.call.result": "not found",
    }
    assert {inside.status.status_code, alone.status.status_code} == {StatusCode.ERROR}


async def test_outside_a_rollout_nothing_is_recorded(stage: Stage) -> None:
    agent = AssistantAgent("solver", stage.client(), tools=[double])

    await agent.run(task="go")

    assert stage.kept() == []
    assert [call.agent for call in stage.store.calls(None)] == [None]
