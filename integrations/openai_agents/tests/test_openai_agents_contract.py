"""The contract, kept by the Agents SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    FunctionTool,
    GuardrailFunctionOutput,
    OpenAIProvider,
    RunConfig,
    RunContextWrapper,
    Runner,
    custom_span,
    function_tool,
    handoff,
    input_guardrail,
    trace,
)
from agents.extensions import handoff_filters
from agents.models import openai_provider
from agents.tool_context import ToolContext
from pydantic import BaseModel

from spangrad.plugins import Integration
from spangrad.testing import ContractEndpoint, IntegrationContract, ReferenceRun, Structure, tool_call_text
from spangrad_openai_agents import OpenAIAgentsIntegration


class Answer(BaseModel):
    word: str
    number: int


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b


@function_tool
def fail(reason: str) -> str:
    """Fails."""
    raise LookupError(reason)


@dataclass
class Solver:
    """An agent and where its model is."""

    agent: Agent[Any]
    endpoint: ContractEndpoint

    def config(self, way: str) -> RunConfig:
        """The run configuration for a way, made for each run as the SDK does where there is none."""
        return config(self.endpoint, use_responses=way.startswith("responses"))


def config(endpoint: ContractEndpoint, *, use_responses: bool = False) -> RunConfig:
    provider = OpenAIProvider(base_url=endpoint.base_url, api_key=endpoint.api_key, use_responses=use_responses)
    return RunConfig(model_provider=provider, model=endpoint.model)


class TestOpenAIAgentsContract(IntegrationContract):
    packages = ("agents", "openai", "threading", "concurrent.futures.thread", "opentelemetry.instrumentation.openai")
    ways = ("run", "run_sync", "responses run", "responses run_sync")
    batch_ways = ("gather", "responses gather")
    stream_ways = ("run_streamed", "responses run_streamed")
    structured_modes = ("output_type", "output_type not strict", "responses output_type")
    structures: ClassVar[Mapping[str, Structure]] = {
        "one after the other": Structure(
            answers=("a plan", "a text"),
            agents=("planner", "writer"),
            tree="""
                invoke_agent planner
                  call planner
                invoke_agent writer
                  call writer
            """,
        ),
        "agent as a tool": Structure(
            answers=(tool_call_text("research", input="rain"), "it rains", "Rain, it says."),
            agents=("writer", "researcher", "writer"),
            tree="""
                invoke_agent writer
                  call writer
                  execute_tool research
                    invoke_agent researcher
                      call researcher
                  call writer
            """,
            attributes={
                "execute_tool research": {"gen_ai.tool.call.result": "it rains", "gen_ai.agent.name": "writer"}
            },
        ),
        "handoff": Structure(
            answers=(tool_call_text("transfer_to_expert"), "42"),
            agents=("front", "expert"),
            tree="""
                invoke_agent front
                  call front
                  handoff expert
                invoke_agent expert
                  call expert
            """,
            attributes={"handoff expert": {"spangrad.handoff.target": "expert", "gen_ai.agent.name": "front"}},
        ),
        "handoffs back and forth": Structure(
            answers=(tool_call_text("transfer_to_expert"), tool_call_text("transfer_to_front"), "done"),
            agents=("front", "expert", "front"),
            tree="""
                invoke_agent front
                  call front
                  handoff expert
                invoke_agent expert
                  call expert
                  handoff front
                invoke_agent front
                  call front
            """,
        ),
        "branches": Structure(
            answers=lambda prompt: f"on {prompt.last}",
            agents=("left", "right"),
            tree="""
                invoke_node left branch
                  invoke_agent left
                    call left
                invoke_node right branch
                  invoke_agent right
                    call right
            """,
            ordered=False,
        ),
    }
    instrumentors: ClassVar[Mapping[str, str]] = {
        **IntegrationContract.instrumentors,
        "OpenInference for the Agents SDK": "openinference.instrumentation.openai_agents:OpenAIAgentsInstrumentor",
    }
    has_judge = True

    @pytest.fixture(autouse=True)
    async def own_http_client(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        """The SDK shares one HTTP client for the whole process; each test has an event loop of its own."""
        monkeypatch.setattr(openai_provider, "_http_client", None)
        yield
        await close_http_client()

    def integration(self) -> Integration:
        return OpenAIAgentsIntegration()

    def tree_of(self, way: str) -> str:
        # The instrumentor of openai makes no span for a raw response that streams, which is how the SDK asks for one.
        return "invoke_agent solver" if way == "responses run_streamed" else self.solver_tree

    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Solver:
        agent = Agent[Any](name="solver", instructions="Answer.", tools=[add, multiply, fail] if tools else [])
        return Solver(agent, endpoint)

    async def ask(self, solver: Solver, way: str, question: str) -> str:
        if way.endswith("run_sync"):
            return await asyncio.to_thread(self._run_sync, solver, way, question)
        return str((await Runner.run(solver.agent, question, run_config=solver.config(way))).final_output)

    def ask_sync(self, solver: Solver, question: str) -> str:
        return self._run_sync(solver, "run_sync", question)

    def _run_sync(self, solver: Solver, way: str, question: str) -> str:
        try:
            return str(Runner.run_sync(solver.agent, question, run_config=solver.config(way)).final_output)
        finally:  # the SDK leaves the thread's loop open, and in its shared client a connection of that loop
            policy = asyncio.get_event_loop_policy()
            policy.get_event_loop().run_until_complete(close_http_client())
            policy.get_event_loop().close()
            policy.set_event_loop(None)

    async def batch(self, solver: Solver, way: str, questions: Sequence[str]) -> list[str]:
        return list(await asyncio.gather(*(self.ask(solver, way, question) for question in questions)))

    async def stream(self, solver: Solver, way: str, question: str) -> list[str]:
        result = Runner.run_streamed(solver.agent, question, run_config=solver.config(way))
        return [text async for text in texts(result)]

    async def close_early(self, solver: Solver, way: str, question: str) -> None:
        result = Runner.run_streamed(solver.agent, question, run_config=solver.config(way))
        async for _ in texts(result):
            result.cancel()
        if result.run_loop_task is not None:
            await asyncio.wait([result.run_loop_task])

    async def structured(self, endpoint: ContractEndpoint, mode: str, question: str) -> Mapping[str, Any]:
        solver = await self.solver(endpoint)
        strict = mode != "output_type not strict"
        solver.agent.output_type = AgentOutputSchema(Answer, strict_json_schema=strict)
        result = await Runner.run(solver.agent, question, run_config=solver.config(mode))
        return result.final_output_as(Answer).model_dump()

    async def run_structure(self, endpoint: ContractEndpoint, name: str, question: str) -> str:
        where = config(endpoint)
        if name == "one after the other":
            with trace("workflow"):
                plan = await Runner.run(Agent[Any](name="planner"), question, run_config=where)
                return str(
                    (await Runner.run(Agent[Any](name="writer"), plan.final_output, run_config=where)).final_output
                )
        if name == "branches":
            with trace("workflow"):
                return " and ".join(
                    await asyncio.gather(*(branch(side, question, where) for side in ("left", "right")))
                )
        return str((await Runner.run(STRUCTURES[name](where), question, run_config=where)).final_output)

    async def judged(self, endpoint: ContractEndpoint, question: str) -> str:
        judge = Agent[Any](name="judge", instructions="Is that fine?", model=endpoint.judge)
        where = config(endpoint)
        where.model = None

        @input_guardrail
        async def decent(context: RunContextWrapper[Any], _: Agent[Any], asked: Any) -> GuardrailFunctionOutput:
            verdict = await Runner.run(judge, asked, context=context.context, run_config=where)
            return GuardrailFunctionOutput(verdict.final_output, tripwire_triggered=verdict.final_output != "fine")

        agent = Agent[Any](name="solver", input_guardrails=[decent], model=endpoint.model)
        return str((await Runner.run(agent, question, run_config=where)).final_output)

    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        async def measure(_: ToolContext[Any], arguments: str) -> str:
            return run.call_tool(json.loads(arguments))

        shown = run.tool["function"]
        tool = FunctionTool(
            name=shown["name"],
            description=shown["description"],
            params_json_schema=shown["parameters"],
            on_invoke_tool=measure,
            strict_json_schema=False,
        )
        agent = Agent[Any](name="solver", instructions=run.system, tools=[tool])
        return str((await Runner.run(agent, run.question, run_config=config(endpoint))).final_output)


async def close_http_client() -> None:
    client, openai_provider._http_client = openai_provider._http_client, None
    if client is not None:
        await client.aclose()


async def texts(result: Any) -> AsyncIterator[str]:
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


async def branch(side: str, question: str, where: RunConfig) -> str:
    with custom_span(f"{side} branch"):
        return str((await Runner.run(Agent[Any](name=side), f"{question} {side}", run_config=where)).final_output)


def agent_as_a_tool(where: RunConfig) -> Agent[Any]:
    researcher = Agent[Any](name="researcher", instructions="Research it.")
    tool = researcher.as_tool("research", "Researches.", run_config=where)
    return Agent[Any](name="writer", instructions="Write it.", tools=[tool])


def one_handoff(_: RunConfig) -> Agent[Any]:
    return Agent[Any](name="front", handoffs=[Agent[Any](name="expert")])


def two_handoffs(_: RunConfig) -> Agent[Any]:
    front, expert = Agent[Any](name="front"), Agent[Any](name="expert")
    front.handoffs = [handoff(expert, input_filter=handoff_filters.remove_all_tools)]
    expert.handoffs = [front]
    return front


STRUCTURES = {"agent as a tool": agent_as_a_tool, "handoff": one_handoff, "handoffs back and forth": two_handoffs}
