"""The contract, kept by LangChain and LangGraph."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import tool
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel

from spangrad.plugins import Integration
from spangrad.testing import ContractEndpoint, IntegrationContract, ReferenceRun, Structure, tool_call_text
from spangrad_langchain import LangChainIntegration

# langchain-openai's own, where the model's answer has a schema.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")


class Answer(BaseModel):
    """An object instead of text."""

    word: str
    number: int


class Branches(TypedDict, total=False):
    """What branches side by side share."""

    question: str
    found: Annotated[list[str], operator.add]


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b


@tool
def fail(reason: str) -> str:
    """Fails."""
    raise LookupError(reason)


def model(endpoint: ContractEndpoint, **options: Any) -> ChatOpenAI:
    settings = {"model": endpoint.model, "base_url": endpoint.base_url, "api_key": endpoint.api_key, **options}
    return ChatOpenAI(**settings)


def asked(question: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(question)]}


def answer_of(state: Mapping[str, Any]) -> str:
    return str(state["messages"][-1].content)


def asking(llm: ChatOpenAI) -> Any:
    """A node that asks a model."""

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke([HumanMessage(str(state["messages"][0].content))])]}

    return node


class TestLangChainContract(IntegrationContract):
    """Solvers are agents made by `create_agent`."""

    packages = (
        "langchain_core",
        "langchain_openai",
        "openai",
        "threading",
        "concurrent.futures.thread",
        "opentelemetry.instrumentation.openai",
    )
    solver_tree = """
        invoke_agent solver
          invoke_node model
            call solver
    """
    ways = ("ainvoke", "invoke", "astream of updates", "stream of values")
    batch_ways = ("abatch", "batch")
    stream_ways = ("astream of messages", "astream_events")
    structured_modes = (
        "function_calling",
        "json_mode",
        "json_schema",
        "json_schema of an agent",
        "tool of an agent",
    )
    has_cache = True
    has_judge = True
    instrumentors: ClassVar[Mapping[str, str]] = {
        **IntegrationContract.instrumentors,
        "OpenInference of LangChain": "openinference.instrumentation.langchain:LangChainInstrumentor",
    }
    structures: ClassVar[Mapping[str, Structure]] = {
        "graph of agents": Structure(
            answers=("select", "wrong", "select better", "ok"),
            agents=("writer", "checker", "rewriter", "checker"),
            tree="""
                invoke_node writer
                  call writer
                invoke_node checker
                  call checker
                invoke_node rewriter
                  call rewriter
                invoke_node checker
                  call checker
            """,
            attributes={"invoke_node writer": {"spangrad.node": "writer", "gen_ai.agent.name": "writer"}},
        ),
        "agent as a tool": Structure(
            answers=(tool_call_text("research", topic="rain"), "it rains", "Rain, it says."),
            agents=("writer", "researcher", "writer"),
            tree="""
                invoke_agent writer
                  invoke_node model
                    call writer
                  invoke_node tools
                    execute_tool research
                      invoke_agent researcher
                        invoke_node model
                          call researcher
                  invoke_node model
                    call writer
            """,
            attributes={
                "execute_tool research": {"gen_ai.tool.call.result": "it rains", "gen_ai.agent.name": "writer"}
            },
        ),
        "handoff by a tool": Structure(
            answers=(tool_call_text("transfer_to_expert"), "42"),
            agents=("front", "expert"),
            tree="""
                invoke_node front
                  invoke_agent front
                    invoke_node model
                      call front
                    invoke_node tools
                      execute_tool transfer_to_expert
                        handoff expert
                invoke_node expert
                  invoke_agent expert
                    invoke_node model
                      call expert
            """,
            attributes={"handoff expert": {"spangrad.handoff.target": "expert", "gen_ai.agent.name": "front"}},
        ),
        "handoff by a node": Structure(
            answers=("over to you", "42"),
            agents=("front", "expert"),
            tree="""
                invoke_node front
                  call front
                  handoff expert
                invoke_node expert
                  call expert
            """,
        ),
        "map and reduce": Structure(
            answers=lambda prompt: f"on {prompt.last}",
            agents=("mapper", "mapper", "mapper", "reducer"),
            tree="""
                invoke_node mapper
                  call mapper
                invoke_node mapper
                  call mapper
                invoke_node mapper
                  call mapper
                invoke_node reducer
                  call reducer
            """,
            ordered=False,
        ),
        "chains side by side": Structure(
            answers=lambda prompt: f"on {prompt.last}",
            agents=("left", "right"),
            tree="""
                invoke_agent both
                  invoke_agent left
                    call left
                  invoke_agent right
                    call right
            """,
            ordered=False,
        ),
        "team in a team": Structure(
            answers=("a plan", "a text"),
            agents=("planner", "writer"),
            tree="""
                invoke_node planner
                  call planner
                invoke_node writing team
                  invoke_node writer
                    call writer
            """,
        ),
    }

    def integration(self) -> Integration:
        return LangChainIntegration()

    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Any:
        return create_agent(model(endpoint), tools=[add, multiply, fail] if tools else [], name="solver")

    async def ask(self, solver: Any, way: str, question: str) -> str:
        if way == "ainvoke":
            return answer_of(await solver.ainvoke(asked(question)))
        if way == "invoke":
            return await asyncio.to_thread(self.ask_sync, solver, question)
        if way == "stream of values":
            states = await asyncio.to_thread(lambda: list(solver.stream(asked(question), stream_mode="values")))
            return answer_of(states[-1])
        updates = [update async for update in solver.astream(asked(question), stream_mode="updates")]
        return answer_of(updates[-1]["model"])

    def ask_sync(self, solver: Any, question: str) -> str:
        return answer_of(solver.invoke(asked(question)))

    async def batch(self, solver: Any, way: str, questions: Sequence[str]) -> list[str]:
        inputs = [asked(question) for question in questions]
        states = await solver.abatch(inputs) if way == "abatch" else await asyncio.to_thread(solver.batch, inputs)
        return [answer_of(state) for state in states]

    async def stream(self, solver: Any, way: str, question: str) -> list[str]:
        return [piece async for piece in self._pieces(solver, way, question)]

    async def close_early(self, solver: Any, way: str, question: str) -> None:
        async with aclosing(self._pieces(solver, way, question)) as pieces:
            async for piece in pieces:
                assert piece
                break

    async def _pieces(self, solver: Any, way: str, question: str) -> AsyncGenerator[str, None]:
        if way == "astream_events":
            async with aclosing(solver.astream_events(asked(question), version="v2")) as events:
                async for event in events:
                    if event["event"] == "on_chat_model_stream" and event["data"]["chunk"].content:
                        yield event["data"]["chunk"].content
            return
        async with aclosing(solver.astream(asked(question), stream_mode="messages")) as messages:
            async for message, _ in messages:
                if isinstance(message, AIMessageChunk) and message.content:
                    yield str(message.content)

    async def structured(self, endpoint: ContractEndpoint, mode: str, question: str) -> Mapping[str, Any]:
        if mode.endswith("of an agent"):
            strategy: Any = ToolStrategy(Answer) if mode.startswith("tool") else ProviderStrategy(Answer)
            agent: Any = create_agent(model(endpoint), tools=[], response_format=strategy, name="solver")
            return dict((await agent.ainvoke(asked(question)))["structured_response"])
        method: Any = mode
        chain = model(endpoint).with_structured_output(Answer, method=method).with_config(run_name="solver")
        found: Any = await chain.ainvoke(question)
        return dict(found)

    async def run_structure(self, endpoint: ContractEndpoint, name: str, question: str) -> str:
        build = {
            "graph of agents": _graph_of_agents,
            "agent as a tool": _agent_as_a_tool,
            "handoff by a tool": _handoff_by_a_tool,
            "handoff by a node": _handoff_by_a_node,
            "team in a team": _team_in_a_team,
        }
        if name in build:
            return answer_of(await build[name](model(endpoint)).ainvoke(asked(question)))
        if name == "map and reduce":
            return str((await _map_and_reduce(model(endpoint)).ainvoke({"question": question}))["found"])
        chain = ChatPromptTemplate.from_template("{question}") | model(endpoint) | StrOutputParser()
        both: Any = RunnableParallel(
            left=chain.with_config(run_name="left"), right=chain.with_config(run_name="right")
        ).with_config(run_name="both")
        return str(await both.ainvoke({"question": question}))

    async def cached_solver(self, endpoint: ContractEndpoint) -> Any:
        # Not `create_agent`: in some versions of LangChain the ids of messages, which it makes, are part of the cache's key.
        builder = StateGraph(MessagesState)
        builder.add_node("solver", asking(model(endpoint, cache=InMemoryCache())))
        builder.add_edge(START, "solver")
        return builder.compile()

    async def judged(self, endpoint: ContractEndpoint, question: str) -> str:
        judge = model(endpoint, model=endpoint.judge)

        async def judging(state: MessagesState) -> dict[str, Any]:
            verdict = await judge.ainvoke([HumanMessage(f"Is this fine? {answer_of(state)}")])
            assert verdict.content == "fine"
            return {}

        builder = StateGraph(MessagesState)
        builder.add_node("solving", create_agent(model(endpoint), tools=[], name="solver"))
        builder.add_node("judge", judging)
        builder.add_edge(START, "solving")
        builder.add_edge("solving", "judge")
        graph: Any = builder.compile()
        return answer_of(await graph.ainvoke(asked(question)))

    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        described = run.tool["function"]
        measure = StructuredTool(
            name=described["name"],
            description=described["description"],
            args_schema=described["parameters"],
            func=lambda **arguments: run.call_tool(arguments),
        )
        agent: Any = create_agent(model(endpoint), tools=[measure], system_prompt=run.system, name="solver")
        return answer_of(await agent.ainvoke(asked(run.question)))


def _graph_of_agents(llm: ChatOpenAI) -> Any:
    builder = StateGraph(MessagesState)
    for name in ("writer", "checker", "rewriter"):
        builder.add_node(name, asking(llm))
    builder.add_edge(START, "writer")
    builder.add_edge("writer", "checker")
    builder.add_conditional_edges("checker", lambda state: END if answer_of(state) == "ok" else "rewriter")
    builder.add_edge("rewriter", "checker")
    return builder.compile()


def _agent_as_a_tool(llm: ChatOpenAI) -> Any:
    researcher: Any = create_agent(llm, tools=[], name="researcher")

    @tool
    async def research(topic: str) -> str:
        """Finds something out."""
        return answer_of(await researcher.ainvoke(asked(topic)))

    return create_agent(llm, tools=[research], name="writer")


def _handoff_by_a_tool(llm: ChatOpenAI) -> Any:
    @tool
    def transfer_to_expert() -> Command[Any]:
        """Hands over to the expert."""
        return Command(goto="expert", graph=Command.PARENT, update={"messages": []})

    builder = StateGraph(MessagesState)
    builder.add_node("front", create_agent(llm, tools=[transfer_to_expert], name="front"), destinations=("expert",))
    builder.add_node("expert", create_agent(llm, tools=[], name="expert"))
    builder.add_edge(START, "front")
    return builder.compile()


def _handoff_by_a_node(llm: ChatOpenAI) -> Any:
    async def front(state: MessagesState) -> Command[Any]:
        return Command(goto="expert", update={"messages": [await llm.ainvoke(state["messages"])]})

    builder = StateGraph(MessagesState)
    builder.add_node("front", front, destinations=("expert",))
    builder.add_node("expert", asking(llm))
    builder.add_edge(START, "front")
    return builder.compile()


def _map_and_reduce(llm: ChatOpenAI) -> Any:
    async def mapper(state: Branches) -> Branches:
        return {"found": [str((await llm.ainvoke(state["question"])).content)]}

    async def reducer(state: Branches) -> Branches:
        answer: AIMessage = await llm.ainvoke(" and ".join(sorted(state["found"])))
        return {"found": [str(answer.content)]}

    builder = StateGraph(Branches)
    builder.add_node("mapper", mapper)
    builder.add_node("reducer", reducer)
    builder.add_conditional_edges(
        START, lambda state: [Send("mapper", {"question": f"{n}: {state['question']}"}) for n in range(3)], ["mapper"]
    )
    builder.add_edge("mapper", "reducer")
    return builder.compile()


def _team_in_a_team(llm: ChatOpenAI) -> Any:
    team = StateGraph(MessagesState)
    team.add_node("writer", asking(llm))
    team.add_edge(START, "writer")
    builder = StateGraph(MessagesState)
    builder.add_node("planner", asking(llm))
    builder.add_node("writing team", team.compile())
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "writing team")
    return builder.compile()
