"""Agents in the shapes of the SDK's own documentation: nothing in them knows of spangrad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    function_tool,
)
from integrations.openai_agents.tests.conftest import in_thread, tool_call
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from spangrad.testing import ScriptedPrompt
from spangrad.transitions import CallStatus

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached", "api")


# quickstart: one agent, run synchronously


def haiku() -> str:
    agent = Agent(name="Assistant", instructions="You are a helpful assistant")

    result = Runner.run_sync(agent, "Write a haiku about recursion in programming.")
    return str(result.final_output)


async def test_hello_world_is_one_transition(stage: Stage) -> None:
    stage.answers("Code within the code")

    with stage.rollout():
        assert await in_thread(haiku) == "Code within the code"

    assert stage.trained() == ["Assistant"]
    assert stage.tree() == ["invoke_agent Assistant"]


# a tool agent


@function_tool
def get_weather(city: str) -> str:
    """Returns weather info for the specified city."""
    return f"The weather in {city} is sunny"


async def test_a_tool_agent_is_two_transitions_around_a_tool(stage: Stage) -> None:
    stage.answers(tool_call("get_weather", city="Tokyo"), "It is sunny in Tokyo.")
    agent = Agent(name="Haiku agent", instructions="Always respond in haiku form", tools=[get_weather])

    with stage.rollout():
        result = await Runner.run(agent, "What's the weather in Tokyo?")

    assert result.final_output == "It is sunny in Tokyo."
    assert stage.trained() == ["Haiku agent", "Haiku agent"]
    assert stage.tree() == ["invoke_agent Haiku agent", "  execute_tool get_weather"]


# the quickstart's homework tutors: a guardrail's agent, a triage agent and handoffs


class HomeworkOutput(BaseModel):
    is_homework: bool
    reasoning: str


guardrail_agent = Agent(
    name="Guardrail check",
    instructions="Check if the user is asking about homework.",
    output_type=HomeworkOutput,
)

math_tutor_agent = Agent(
    name="Math Tutor",
    handoff_description="Specialist agent for math questions",
    instructions="You provide help with math problems.",
)

history_tutor_agent = Agent(
    name="History Tutor",
    handoff_description="Specialist agent for historical questions",
    instructions="You provide assistance with historical queries.",
)


async def homework_guardrail(
    ctx: RunContextWrapper[None], _agent: Agent[Any], input_data: Any
) -> GuardrailFunctionOutput:
    result = await Runner.run(guardrail_agent, input_data, context=ctx.context)
    final_output = result.final_output_as(HomeworkOutput)
    return GuardrailFunctionOutput(output_info=final_output, tripwire_triggered=not final_output.is_homework)


def triage_agent() -> Agent[Any]:
    return Agent(
        name="Triage Agent",
        instructions="You determine which agent to use based on the user's homework question",
        handoffs=[history_tutor_agent, math_tutor_agent],
        input_guardrails=[InputGuardrail(guardrail_function=homework_guardrail)],
    )


def homework_script(prompt: ScriptedPrompt) -> str:
    system = prompt.messages[0]["content"]
    if "asking about homework" in system or "asking about homework" in prompt.messages[1]["content"]:
        about = "meaning of life" not in prompt.last
        return HomeworkOutput(is_homework=about, reasoning="-").model_dump_json()
    if "historical queries" in "".join(message["content"] for message in prompt.messages[:2]):
        return "George Washington"
    return tool_call("transfer_to_history_tutor")


async def test_the_homework_tutors_are_three_agents_with_a_handoff(stage: Stage) -> None:
    stage.script = homework_script

    with stage.rollout():
        result = await Runner.run(triage_agent(), "who was the first president of the united states?")

    assert result.final_output == "George Washington"
    assert result.last_agent is history_tutor_agent
    assert sorted(stage.trained(), key=str) == ["Guardrail check", "History Tutor", "Triage Agent"]
    order = stage.trained()
    assert order.index("Triage Agent") < order.index("History Tutor")
    assert stage.tree() == [
        "invoke_agent Triage Agent",
        "  invoke_node homework_guardrail",
        "    invoke_agent Guardrail check",
        "  handoff History Tutor",
        "invoke_agent History Tutor",
    ]
    assert stage.said("handoff History Tutor")["spangrad.handoff.target"] == "History Tutor"
    assert stage.said("handoff History Tutor")["gen_ai.agent.name"] == "Triage Agent"
    assert stage.said("invoke_node homework_guardrail")["spangrad.guardrail.triggered"] is False


async def test_a_tripwire_passes_unchanged(stage: Stage) -> None:
    stage.script = homework_script

    with stage.rollout(), pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await Runner.run(triage_agent(), "what is the meaning of life?")

    assert caught.value.guardrail_result.guardrail.get_name() == "homework_guardrail"
    assert stage.said("invoke_node homework_guardrail")["spangrad.guardrail.triggered"] is True
    assert "Guardrail check" in stage.agents()


# agents as tools


def orchestrator() -> Agent[Any]:
    spanish_agent = Agent(
        name="Spanish agent",
        instructions="You translate the user's message to Spanish",
    )
    french_agent = Agent(
        name="French agent",
        instructions="You translate the user's message to French",
    )
    return Agent(
        name="orchestrator_agent",
        instructions="You are a translation agent. You use the tools given to you to translate.",
        tools=[
            spanish_agent.as_tool(
                tool_name="translate_to_spanish",
                tool_description="Translate the user's message to Spanish",
            ),
            french_agent.as_tool(
                tool_name="translate_to_french",
                tool_description="Translate the user's message to French",
            ),
        ],
    )


def translation_script(prompt: ScriptedPrompt) -> str:
    said = "".join(message["content"] for message in prompt.messages)
    if "user's message to Spanish" in said and "You are a translation agent" not in said:
        return "Hola"
    if "user's message to French" in said and "You are a translation agent" not in said:
        return "Salut"
    if "Hola" in said and "Salut" in said:
        return "Hola, Salut"
    return tool_call("translate_to_spanish", input="Hi") + tool_call("translate_to_french", input="Hi")


async def test_agents_as_tools_run_side_by_side_below_their_tools(stage: Stage) -> None:
    stage.script = translation_script

    with stage.rollout():
        result = await Runner.run(orchestrator(), input="Say 'Hi' in Spanish and French.")

    assert result.final_output == "Hola, Salut"
    agents = stage.trained()
    assert (agents[0], set(agents[1:3]), agents[3]) == (
        "orchestrator_agent",
        {"Spanish agent", "French agent"},
        "orchestrator_agent",
    )
    assert stage.tree() == [
        "invoke_agent orchestrator_agent",
        "  execute_tool translate_to_spanish",
        "    invoke_agent Spanish agent",
        "  execute_tool translate_to_french",
        "    invoke_agent French agent",
    ]


# structured output


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


async def test_structured_output_comes_as_its_type(stage: Stage) -> None:
    event = CalendarEvent(name="Science fair", date="Friday", participants=["Alice", "Bob"])
    stage.answers(event.model_dump_json())
    agent = Agent(name="Calendar extractor", instructions="Extract calendar events", output_type=CalendarEvent)

    with stage.rollout():
        result = await Runner.run(agent, "Alice and Bob are going to a science fair on Friday.")

    assert result.final_output == event
    assert stage.trained() == ["Calendar extractor"]


# streaming


async def joke(agent: Agent[Any]) -> list[str]:
    result = Runner.run_streamed(agent, input="Please tell me 5 jokes.")
    seen = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            seen.append(event.data.delta)
        elif event.type != "raw_response_event":
            seen.append(event.type)
    return seen


async def test_a_stream_is_the_same_with_and_without_a_rollout(stage: Stage) -> None:
    agent = Agent(name="Joker", instructions="You are a helpful assistant.", tools=[get_weather])

    stage.answers(tool_call("get_weather", city="Rome"), "A joke.")
    outside = await joke(agent)
    stage.answers(tool_call("get_weather", city="Rome"), "A joke.")
    with stage.rollout():
        inside = await joke(agent)

    assert inside == outside
    assert "".join(text for text in inside if "event" not in text).endswith("A joke.")
    assert stage.trained() == ["Joker", "Joker"]
    assert stage.tree() == ["invoke_agent Joker", "  execute_tool get_weather"]


# sessions


async def test_a_session_carries_the_conversation_from_run_to_run(stage: Stage) -> None:
    stage.answers("San Francisco", "California")
    agent = Agent(name="Assistant", instructions="Reply very concisely.")
    session = SQLiteSession("conversation_123")

    with stage.rollout():
        first = await Runner.run(agent, "What city is the Golden Gate Bridge in?", session=session)
        second = await Runner.run(agent, "What state is it in?", session=session)
    session.close()

    assert (first.final_output, second.final_output) == ("San Francisco", "California")
    calls = stage.calls()
    assert [call.status for call in calls] == [CallStatus.OK, CallStatus.OK]
    assert stage.trained() == ["Assistant", "Assistant"]
    assert stage.tree() == ["invoke_agent Assistant", "invoke_agent Assistant"]
