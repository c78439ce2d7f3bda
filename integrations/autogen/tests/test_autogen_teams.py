"""Several agents, as AutoGen's documentation puts them together: nothing in them knows of spangrad."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core.models import ChatCompletionClient
from integrations.autogen.tests.conftest import lines, tool_call

from spangrad.testing import ScriptedPrompt

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")


def reflection(model_client: ChatCompletionClient) -> RoundRobinGroupChat:
    primary_agent = AssistantAgent(
        "primary",
        model_client=model_client,
        system_message="You are a helpful AI assistant.",
    )
    critic_agent = AssistantAgent(
        "critic",
        model_client=model_client,
        system_message="Provide constructive feedback. Respond with 'APPROVE' to when your feedbacks are addressed.",
    )
    return RoundRobinGroupChat(
        [primary_agent, critic_agent], termination_condition=TextMentionTermination("APPROVE", sources=["critic"])
    )


async def test_a_team_in_turns_gives_its_agents_transitions_in_order(stage: Stage) -> None:
    stage.answers("Leaves fall.", "Longer.", "Golden leaves fall.", "APPROVE")

    with stage.rollout():
        result = await reflection(stage.client()).run(task="Write a short poem about the fall season.")

    assert isinstance(result, TaskResult)
    assert [message.source for message in result.messages] == ["user", "primary", "critic", "primary", "critic"]
    assert stage.agents() == ["primary", "critic", "primary", "critic"]
    assert stage.tree() == lines(
        "invoke_node RoundRobinGroupChat",
        *["  invoke_agent primary", "    openai.chat", "  invoke_agent critic", "    openai.chat"] * 2,
    )


async def test_a_team_that_goes_on_gives_a_span_for_each_run(stage: Stage) -> None:
    team = RoundRobinGroupChat([AssistantAgent("counter", stage.client())], max_turns=1)

    with stage.rollout():
        await team.run(task="one")
        await team.run()

    assert stage.agents() == ["counter", "counter"]
    assert stage.tree().splitlines().count("invoke_node RoundRobinGroupChat") == 2


async def test_the_selectors_own_calls_are_its_managers(stage: Stage) -> None:
    stage.answers("planner", "Search first.", "searcher", "Found it. TERMINATE")
    client = stage.client()
    team = SelectorGroupChat(
        [
            AssistantAgent("planner", client, description="Plans."),
            AssistantAgent("searcher", client, description="Searches."),
        ],
        model_client=client,
        termination_condition=TextMentionTermination("TERMINATE", sources=["searcher"]),
        allow_repeated_speaker=True,
    )

    with stage.rollout():
        await team.run(task="Who was the Miami Heat player with the highest points?")

    assert stage.agents() == ["SelectorGroupChatManager", "planner", "SelectorGroupChatManager", "searcher"]
    assert stage.tree() == lines(
        "invoke_node SelectorGroupChat",
        "  invoke_agent SelectorGroupChatManager",
        "    openai.chat",
        "  invoke_agent planner",
        "    openai.chat",
        "  invoke_agent SelectorGroupChatManager",
        "    openai.chat",
        "  invoke_agent searcher",
        "    openai.chat",
    )


def refund_flight(flight_id: str) -> str:
    """Refund a flight."""
    return f"Flight {flight_id} refunded"


async def test_a_swarms_handoffs_are_recorded_with_who_takes_over(stage: Stage) -> None:
    stage.answers(
        tool_call("transfer_to_flights_refunder"),
        tool_call("refund_flight", flight_id="507811"),
        tool_call("transfer_to_travel_agent"),
        "All done. TERMINATE",
    )
    client = stage.client()
    travel_agent = AssistantAgent("travel_agent", client, handoffs=["flights_refunder", "user"])
    flights_refunder = AssistantAgent("flights_refunder", client, handoffs=["travel_agent"], tools=[refund_flight])
    team = Swarm(
        [travel_agent, flights_refunder],
        termination_condition=HandoffTermination(target="user")
        | TextMentionTermination("TERMINATE", sources=["travel_agent"]),
    )

    with stage.rollout():
        await team.run(task="I need to refund my flight.")

    assert stage.agents() == ["travel_agent", "flights_refunder", "flights_refunder", "travel_agent"]
    assert stage.tree() == lines(
        "invoke_node Swarm",
        "  invoke_agent travel_agent",
        "    openai.chat",
        "    handoff flights_refunder",
        "  invoke_agent flights_refunder",
        "    openai.chat",
        "    execute_tool refund_flight",
        "  invoke_agent flights_refunder",
        "    openai.chat",
        "    handoff travel_agent",
        "  invoke_agent travel_agent",
        "    openai.chat",
    )
    handoff = stage.span("handoff flights_refunder").attributes or {}
    assert handoff["gen_ai.agent.name"] == "travel_agent"
    assert handoff["spangrad.handoff.target"] == "flights_refunder"
    assert handoff["gen_ai.tool.name"] == "transfer_to_flights_refunder"
    assert str(handoff["gen_ai.tool.call.id"]).startswith("call_")


async def test_an_agent_as_a_tool_stands_below_the_tool_call(stage: Stage) -> None:
    stage.answers(tool_call("writer", task="A poem about the sea."), "Waves.", "Here it is: Waves.")
    writer = AssistantAgent("writer", stage.client(), description="A writer agent for generating text.")
    assistant = AssistantAgent(
        "assistant",
        stage.client(parallel_tool_calls=False),
        tools=[AgentTool(agent=writer, return_value_as_last_message=True)],
        reflect_on_tool_use=True,
    )

    with stage.rollout():
        result = await assistant.run(task="Write a poem about the sea.")

    assert result.messages[-1].to_text() == "Here it is: Waves."
    assert stage.agents() == ["assistant", "writer", "assistant"]
    assert stage.tree() == lines(
        "invoke_agent assistant",
        "  openai.chat",
        "  execute_tool writer",
        "    invoke_agent writer",
        "      openai.chat",
        "  openai.chat",
    )
    assert (stage.span("execute_tool writer").attributes or {})["gen_ai.tool.call.result"] == "Waves."


async def test_a_society_of_mind_stands_above_its_inner_team(stage: Stage) -> None:
    stage.answers("A story.", "APPROVE", "The story.", "El cuento.")
    client = stage.client()
    inner_team = RoundRobinGroupChat(
        [AssistantAgent("writer", client), AssistantAgent("editor", client)],
        termination_condition=TextMentionTermination("APPROVE", sources=["editor"]),
    )
    society = SocietyOfMindAgent("society_of_mind", team=inner_team, model_client=client)
    team = RoundRobinGroupChat([society, AssistantAgent("translator", client)], max_turns=2)

    with stage.rollout():
        await team.run(task="Write a short story with a surprising ending.")

    assert stage.agents() == ["writer", "editor", "society_of_mind", "translator"]
    assert stage.tree() == lines(
        "invoke_node RoundRobinGroupChat",
        "  invoke_agent society_of_mind",
        "    invoke_node RoundRobinGroupChat",
        "      invoke_agent writer",
        "        openai.chat",
        "      invoke_agent editor",
        "        openai.chat",
        "    openai.chat",
        "  invoke_agent translator",
        "    openai.chat",
    )


async def test_parallel_branches_of_a_graph_stand_side_by_side(stage: Stage) -> None:
    both = asyncio.Event()
    waiting = 0
    loop = asyncio.get_running_loop()

    async def meet() -> None:
        nonlocal waiting
        waiting += 1
        while waiting < 2:  # noqa: ASYNC110 - the event belongs to the gateway's loop, which is not this one
            await asyncio.sleep(0.001)
        loop.call_soon_threadsafe(both.set)

    def script(prompt: ScriptedPrompt) -> Any:
        system = prompt.messages[0]["content"]
        return (meet, "Edited.") if "Edit" in system else "Text."

    stage.script = script
    client = stage.client()
    writer = AssistantAgent("writer", client, system_message="Draft.")
    grammar = AssistantAgent("grammar", client, system_message="Edit for grammar.")
    style = AssistantAgent("style", client, system_message="Edit for style.")
    final = AssistantAgent("final", client, system_message="Consolidate.")
    builder = DiGraphBuilder()
    builder.add_node(writer).add_node(grammar).add_node(style).add_node(final)
    builder.add_edge(writer, grammar)
    builder.add_edge(writer, style)
    builder.add_edge(grammar, final)
    builder.add_edge(style, final)
    flow = GraphFlow(builder.get_participants(), graph=builder.build())

    with stage.rollout():
        await flow.run(task="Write a short paragraph about climate change.")

    assert both.is_set()
    agents = stage.agents()
    assert (agents[0], set(agents[1:3]), agents[3:]) == ("writer", {"grammar", "style"}, ["final"])
    tree = stage.tree().splitlines()
    assert tree[0].startswith("invoke_node ")
    assert sorted(tree[1::2]) == [f"  invoke_agent {name}" for name in ("final", "grammar", "style", "writer")]
    assert set(tree[2::2]) == {"    openai.chat"}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # AutoGen dumps openai's parsed answers so
async def test_the_orchestrator_of_magentic_one_is_an_agent(stage: Stage) -> None:
    progress = iter([False, True])

    def script(prompt: ScriptedPrompt) -> str:
        if "pure JSON format" not in prompt.last:
            return "A text."
        reasons: dict[str, Any] = {
            "is_request_satisfied": next(progress),
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "solver",
            "instruction_or_question": "What is 2+2?",
        }
        return json.dumps({name: {"answer": answer, "reason": "so"} for name, answer in reasons.items()})

    stage.script = script
    client = stage.client()
    team = MagenticOneGroupChat([AssistantAgent("solver", client)], model_client=client, max_turns=4)

    with stage.rollout():
        await team.run(task="2+2?")

    agents = stage.agents()
    assert agents.count("solver") == 1
    assert set(agents) == {"solver", "MagenticOneOrchestrator"}
    assert stage.tree().splitlines()[:2] == [
        "invoke_node MagenticOneGroupChat",
        "  invoke_agent MagenticOneOrchestrator",
    ]


async def test_a_teams_stream_left_early_leaves_nothing_open(stage: Stage) -> None:
    client = stage.client()
    team = RoundRobinGroupChat(
        [AssistantAgent("a", client), AssistantAgent("b", client)], termination_condition=MaxMessageTermination(9)
    )

    with stage.rollout():
        stream = team.run_stream(task="go")
        async for item in stream:
            if getattr(item, "source", "") == "a":
                break
        await stream.aclose()

    spans = stage.kept()
    assert all(span.end_time is not None for span in spans)
    assert stage.agents()[:1] == ["a"]


async def test_eight_teams_at_once_on_one_client_own_their_calls(stage: Stage) -> None:
    client = stage.client()

    async def one(rollout_id: str) -> None:
        with stage.rollout(rollout_id):
            team = RoundRobinGroupChat([AssistantAgent("first", client), AssistantAgent("second", client)], max_turns=2)
            await team.run(task=f"I am {rollout_id}.")

    names = [f"rollout-{number}" for number in range(8)]
    await asyncio.gather(*(one(name) for name in names))

    for name in names:
        assert stage.agents(name) == ["first", "second"]
        assert {call.request["messages"][1]["content"] for call in stage.calls(name)} == {f"I am {name}."}
        assert stage.tree(name) == lines(
            "invoke_node RoundRobinGroupChat",
            "  invoke_agent first",
            "    openai.chat",
            "  invoke_agent second",
            "    openai.chat",
        )
    assert stage.store.calls(None) == []
