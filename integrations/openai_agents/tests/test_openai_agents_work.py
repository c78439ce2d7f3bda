"""What is recorded of handoffs, guardrails, branches and errors, and that the program notices nothing of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    HandoffInputData,
    MaxTurnsExceeded,
    Model,
    ModelProvider,
    OpenAIChatCompletionsModel,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    custom_span,
    function_tool,
    handoff,
    output_guardrail,
    trace,
)
from integrations.openai_agents.tests.conftest import tool_call
from openai import AsyncOpenAI, BadRequestError
from opentelemetry.trace import StatusCode

from spangrad.gateway._engine import EngineError

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached", "api")


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def agent(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent(name="solver", instructions="Solve it.", tools=list(tools), **options)


# handoffs


async def test_a_handoff_with_a_filter_names_both_agents(stage: Stage) -> None:
    seen: list[HandoffInputData] = []

    def only_the_question(data: HandoffInputData) -> HandoffInputData:
        seen.append(data)
        return data.clone(pre_handoff_items=(), new_items=())

    expert = Agent(name="expert", instructions="Answer.")
    front = Agent(name="front", instructions="Hand over.", handoffs=[handoff(expert, input_filter=only_the_question)])
    stage.answers(tool_call("transfer_to_expert"), "42")

    with stage.rollout():
        result = await Runner.run(front, "6*7?")

    assert len(seen) == 1
    assert result.last_agent is expert
    assert stage.trained() == ["front", "expert"]
    assert stage.tree() == ["invoke_agent front", "  handoff expert", "invoke_agent expert"]
    assert stage.said("handoff expert")["spangrad.handoff.target"] == "expert"


# guardrails


async def test_an_output_guardrails_judge_is_an_agent_of_its_own(stage: Stage) -> None:
    judge = Agent(name="judge", instructions="Judge it.", model="frozen-judge")

    @output_guardrail
    async def decent(context: RunContextWrapper[None], _: Agent[Any], output: str) -> GuardrailFunctionOutput:
        verdict = await Runner.run(judge, output, context=context.context)
        return GuardrailFunctionOutput(
            output_info=verdict.final_output, tripwire_triggered=verdict.final_output == "indecent"
        )

    stage.answers("Something rude", "indecent")

    with stage.rollout(), pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent(output_guardrails=[decent]), "go")

    assert stage.agents() == ["solver", "judge"]
    assert [call.request["model"] for call in stage.calls()][1] == "frozen-judge"
    assert stage.said("invoke_node decent")["spangrad.guardrail.triggered"] is True
    assert stage.tree()[-2:] == ["  invoke_node decent", "    invoke_agent judge"]


# the run's own limits, and what the program adds


async def test_too_many_turns_raise_as_ever_and_mark_the_agent(stage: Stage) -> None:
    stage.script = lambda _prompt: tool_call("add", a=1, b=1)

    with stage.rollout(), pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent(add), "go", max_turns=2)

    assert stage.trained() == ["solver", "solver"]
    assert stage.span("invoke_agent solver").status.status_code is StatusCode.ERROR


async def test_an_agent_that_runs_while_the_program_handles_an_error_is_not_marked_with_it(stage: Stage) -> None:
    stage.answers("5")

    with stage.rollout():
        try:
            dict[str, int]()["something else"]
        except KeyError:
            await Runner.run(agent(), "2+3?")

    assert stage.span("invoke_agent solver").status.status_code is StatusCode.UNSET


async def test_an_agent_that_the_model_fails_is_marked(stage: Stage) -> None:
    stage.script = lambda _prompt: EngineError("the model refuses", status=400)

    with stage.rollout(), pytest.raises(BadRequestError):
        await Runner.run(agent(), "2+3?")

    assert stage.span("invoke_agent solver").status.status_code is StatusCode.ERROR
    assert stage.trained() == []


async def test_a_span_of_the_programs_own_is_a_node(stage: Stage) -> None:
    stage.answers("one", "two")

    with stage.rollout(), trace("workflow"), custom_span("planning"):
        await Runner.run(agent(), "go")

    assert stage.tree() == ["invoke_node planning", "  invoke_agent solver"]
    assert stage.said("invoke_node planning")["spangrad.node"] == "planning"


async def test_branches_run_side_by_side_have_the_right_parents(stage: Stage) -> None:
    async def branch(number: int) -> None:
        with custom_span(f"branch {number}"):
            await Runner.run(Agent(name=f"worker {number}", tools=[add]), f"job {number}")

    stage.script = lambda prompt: "done" if prompt.messages[-1]["role"] == "tool" else tool_call("add", a=1, b=1)

    with stage.rollout(), trace("workflow"):
        await asyncio.gather(*(branch(number) for number in range(3)))

    tree = stage.tree()
    for number in range(3):
        at = tree.index(f"invoke_node branch {number}")
        assert tree[at : at + 3] == [
            f"invoke_node branch {number}",
            f"  invoke_agent worker {number}",
            "    execute_tool add",
        ]
    assert sorted(map(str, stage.trained())) == [f"worker {number}" for number in range(3) for _ in range(2)]


class Log(RunHooks[Any]):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        del context
        self.seen.append(f"start {agent.name}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        del context, agent
        self.seen.append(f"tool {tool.name} {result}")

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        del context, agent
        self.seen.append(f"end {output}")


class AgentLog(AgentHooks[Any]):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        del context, agent
        self.seen.append(f"tool {tool.name}")


async def test_the_programs_hooks_are_called_as_ever(stage: Stage) -> None:
    stage.answers(tool_call("add", a=2, b=3), "5")
    log, agent_log = Log(), AgentLog()

    with stage.rollout():
        await Runner.run(agent(add, hooks=agent_log), "2+3?", hooks=log)

    assert log.seen == ["start solver", "tool add 5", "end 5"]
    assert agent_log.seen == ["tool add"]


async def test_a_model_provider_of_the_programs_own_is_captured_where_it_uses_openai(stage: Stage) -> None:
    class Own(ModelProvider):
        def __init__(self, client: AsyncOpenAI) -> None:
            self.client = client

        def get_model(self, model_name: str | None) -> Model:
            return OpenAIChatCompletionsModel(model=model_name or "own-model", openai_client=self.client)

    stage.answers("5")
    async with AsyncOpenAI() as client:
        with stage.rollout():
            await Runner.run(agent(), "2+3?", run_config=RunConfig(model_provider=Own(client)))

    assert stage.trained() == ["solver"]
    assert stage.calls()[0].request["model"] == "own-model"


# several runs in one trace


async def test_runs_in_one_trace_stay_apart(stage: Stage) -> None:
    stage.answers("Why did the chicken cross the road?", "9/10")
    agent = Agent(name="Joke generator", instructions="Tell funny jokes.")
    judge = Agent(name="Judge", instructions="Rate jokes.")

    with stage.rollout(), trace("Joke workflow"):
        first = await Runner.run(agent, "Tell me a joke")
        second = await Runner.run(judge, f"Rate this joke: {first.final_output}")

    assert second.final_output == "9/10"
    assert stage.trained() == ["Joke generator", "Judge"]
    assert stage.tree() == ["invoke_agent Joke generator", "invoke_agent Judge"]


async def test_calls_of_the_sdks_own_model_stand_among_the_tools_they_ask_for(stage: Stage) -> None:
    stage.answers(tool_call("add", a=1, b=2), "3")

    with stage.rollout():
        result = await Runner.run(
            agent(add), "1+2?"
        )  # without a model named: the SDK's default, with reasoning settings

    assert result.final_output == "3"
    names = [span.name for span in stage.kept("rollout")]
    assert [name.startswith("openai.") for name in names] == [False, True, False, True]
    assert [names[0], names[2]] == ["invoke_agent solver", "execute_tool add"]
