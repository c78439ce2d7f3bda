"""Agents in the shapes of LangChain's and LangGraph's own documentation: nothing in them knows of spangrad."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import pytest
from integrations.langchain.tests.conftest import tool_call
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

if TYPE_CHECKING:
    from integrations.langchain.tests.conftest import Stage

    from spangrad.testing import ScriptedPrompt

pytestmark = pytest.mark.usefixtures("attached")


# the quickstart: an agent with a tool


@tool
def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


def test_the_quickstarts_agent_is_two_transitions_around_a_tool(stage: Stage) -> None:
    stage.answers(tool_call("get_weather", city="sf"), "Sunny.")
    agent = create_agent(
        model=stage.model(), tools=[get_weather], system_prompt="You are a helpful assistant", name="forecaster"
    )

    with stage.rollout():
        result = agent.invoke({"messages": [{"role": "user", "content": "what is the weather in sf"}]})

    assert result["messages"][-1].content == "Sunny."
    assert stage.trained() == ["forecaster", "forecaster"]
    assert stage.tree() == [
        "invoke_agent forecaster",
        "  invoke_node model",
        "    call forecaster",
        "  invoke_node tools",
        "    execute_tool get_weather",
        "  invoke_node model",
        "    call forecaster",
    ]
    said = stage.said("execute_tool get_weather")
    assert said["gen_ai.tool.name"] == "get_weather"
    assert said["gen_ai.tool.call.arguments"] == '{"city": "sf"}'
    assert said["gen_ai.tool.call.result"] == "It's always sunny in sf!"
    assert said["gen_ai.tool.call.id"] == result["messages"][1].tool_calls[0]["id"]
    assert said["gen_ai.agent.name"] == "forecaster"


# LangGraph's quickstart: a model and a tool node, written by hand


class CalculatorState(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]
    llm_calls: int


@tool
def multiply(a: int, b: int) -> int:
    """Multiply `a` and `b`."""
    return a * b


def calculator(stage: Stage) -> Any:
    tools_by_name = {"multiply": multiply}
    model_with_tools = stage.model().bind_tools([multiply])

    def llm_call(state: CalculatorState) -> dict[str, Any]:
        """LLM decides whether to call a tool or not."""
        system = SystemMessage(content="You are a helpful assistant tasked with performing arithmetic.")
        return {
            "messages": [model_with_tools.invoke([system, *state["messages"]])],
            "llm_calls": state.get("llm_calls", 0) + 1,
        }

    def tool_node(state: CalculatorState) -> dict[str, Any]:
        """Performs the tool call."""
        result = []
        for call in state["messages"][-1].tool_calls:  # type: ignore[union-attr]  # as in the documentation
            observation = tools_by_name[call["name"]].invoke(call["args"])
            result.append(ToolMessage(content=str(observation), tool_call_id=call["id"]))
        return {"messages": result}

    def should_continue(state: CalculatorState) -> Literal["tool_node", "__end__"]:
        """Decide if we should continue the loop or stop."""
        return "tool_node" if state["messages"][-1].tool_calls else END  # type: ignore[union-attr, return-value]  # as above

    builder = StateGraph(CalculatorState)
    builder.add_node("llm_call", llm_call)
    builder.add_node("tool_node", tool_node)
    builder.add_edge(START, "llm_call")
    builder.add_conditional_edges("llm_call", should_continue, ["tool_node", END])
    builder.add_edge("tool_node", "llm_call")
    return builder.compile()


def test_a_graph_written_by_hand_has_its_nodes_for_agents(stage: Stage) -> None:
    stage.answers(tool_call("multiply", a=3, b=4), "12")

    with stage.rollout():
        state = calculator(stage).invoke({"messages": [HumanMessage(content="Multiply 3 and 4.")]})

    assert (state["messages"][-1].content, state["llm_calls"]) == ("12", 2)
    assert stage.trained() == ["llm_call", "llm_call"]
    assert stage.tree() == [
        "invoke_node llm_call",
        "  call llm_call",
        "invoke_node tool_node",
        "  execute_tool multiply",
        "invoke_node llm_call",
        "  call llm_call",
    ]
    assert stage.said("invoke_node tool_node")["spangrad.node"] == "tool_node"
    assert stage.said("execute_tool multiply")["gen_ai.tool.call.result"] == 12


# writer, checker and rewriter: three agents that share one model, to be trained by their names


class Draft(TypedDict, total=False):
    text: str
    verdict: str


async def test_agents_of_one_graph_are_told_apart_by_their_nodes(stage: Stage) -> None:
    stage.answers("draft", "wrong", "better", "ok")
    model = stage.model()

    async def writer(state: Draft) -> Draft:
        return {"text": str((await model.ainvoke(f"write {state}")).content)}

    async def checker(state: Draft) -> Draft:
        return {"verdict": str((await model.ainvoke(f"check {state['text']}")).content)}

    async def rewriter(state: Draft) -> Draft:
        return {"text": str((await model.ainvoke(f"rewrite {state['text']}")).content)}

    flow = StateGraph(Draft)
    flow.add_node("writer", writer)
    flow.add_node("checker", checker)
    flow.add_node("rewriter", rewriter)
    flow.add_edge(START, "writer")
    flow.add_edge("writer", "checker")
    flow.add_conditional_edges("checker", lambda state: END if state["verdict"] == "ok" else "rewriter")
    flow.add_edge("rewriter", "checker")

    with stage.rollout():
        end = await flow.compile(name="text to sql").ainvoke({})

    assert end == {"text": "better", "verdict": "ok"}
    assert stage.trained() == ["writer", "checker", "rewriter", "checker"]
    assert stage.tree() == [
        "invoke_agent text to sql",
        "  invoke_node writer",
        "    call writer",
        "  invoke_node checker",
        "    call checker",
        "  invoke_node rewriter",
        "    call rewriter",
        "  invoke_node checker",
        "    call checker",
    ]


# subagents: a supervisor whose tools are agents


def supervisor(stage: Stage) -> Any:
    calendar_agent = create_agent(stage.model(), tools=[], system_prompt="You schedule.", name="calendar_agent")
    email_agent = create_agent(stage.model(), tools=[], system_prompt="You send emails.", name="email_agent")

    @tool
    def schedule_event(request: str) -> str:
        """Schedule calendar events using natural language."""
        result = calendar_agent.invoke({"messages": [{"role": "user", "content": request}]})
        return str(result["messages"][-1].text)

    @tool
    def manage_email(request: str) -> str:
        """Send emails using natural language."""
        result = email_agent.invoke({"messages": [{"role": "user", "content": request}]})
        return str(result["messages"][-1].text)

    return create_agent(
        stage.model(), tools=[schedule_event, manage_email], system_prompt="You are helpful.", name="supervisor"
    )


def supervised(prompt: ScriptedPrompt) -> str:
    system = prompt.messages[0]["content"] + prompt.messages[1]["content"]
    if "You schedule." in system:
        return "scheduled"
    if "You send emails." in system:
        return "sent"
    if any("scheduled" in message["content"] for message in prompt.messages):
        return "both done"
    return tool_call("schedule_event", request="meeting") + tool_call("manage_email", request="invitation")


def test_agents_as_tools_run_side_by_side_below_their_tools(stage: Stage) -> None:
    stage.script = supervised

    with stage.rollout():
        result = supervisor(stage).invoke({"messages": [{"role": "user", "content": "Arrange it"}]})

    assert result["messages"][-1].content == "both done"
    agents = stage.trained()
    assert (agents[0], sorted(map(str, agents[1:3])), agents[3]) == (
        "supervisor",
        ["calendar_agent", "email_agent"],
        "supervisor",
    )
    tree = stage.tree()
    below = {
        tree[number - 1].strip(): [line.strip() for line in tree[number : number + 3]]
        for number, line in enumerate(tree)
        if tree[number - 1].strip().startswith("execute_tool")
    }
    assert below == {
        "execute_tool schedule_event": ["invoke_agent calendar_agent", "invoke_node model", "call calendar_agent"],
        "execute_tool manage_email": ["invoke_agent email_agent", "invoke_node model", "call email_agent"],
    }


# handoffs: agents in a graph, with tools that go to another agent


def test_a_handoff_by_a_tool_ends_one_agent_and_begins_the_other(stage: Stage) -> None:
    @tool
    def transfer_to_sales() -> Command[Any]:
        """Transfer to the sales agent."""
        return Command(goto="sales_agent", graph=Command.PARENT, update={"messages": []})

    stage.answers(tool_call("transfer_to_sales"), "It costs 5.")
    support = create_agent(stage.model(), tools=[transfer_to_sales], name="support_agent")
    sales = create_agent(stage.model(), tools=[], name="sales_agent")
    builder = StateGraph(MessagesState)
    builder.add_node("support_agent", support, destinations=("sales_agent",))
    builder.add_node("sales_agent", sales)
    builder.add_edge(START, "support_agent")

    with stage.rollout():
        result = builder.compile().invoke({"messages": [HumanMessage("How much?")]})

    assert result["messages"][-1].content == "It costs 5."
    assert stage.trained() == ["support_agent", "sales_agent"]
    assert stage.tree() == [
        "invoke_node support_agent",
        "  invoke_agent support_agent",
        "    invoke_node model",
        "      call support_agent",
        "    invoke_node tools",
        "      execute_tool transfer_to_sales",
        "        handoff sales_agent",
        "invoke_node sales_agent",
        "  invoke_agent sales_agent",
        "    invoke_node model",
        "      call sales_agent",
    ]
    said = stage.said("handoff sales_agent")
    assert said["spangrad.handoff.target"] == "sales_agent"
    assert said["gen_ai.agent.name"] == "support_agent"
    assert [span.name for span in stage.kept() if span.status.status_code.name == "ERROR"] == []


def test_a_node_hands_over_by_a_command(stage: Stage) -> None:
    def alice(state: MessagesState) -> Command[Literal["bob"]]:
        answer = stage.model().invoke(state["messages"])
        return Command(goto="bob", update={"messages": [answer]})

    def bob(state: MessagesState) -> dict[str, Any]:
        return {"messages": [stage.model().invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("alice", alice)
    builder.add_node("bob", bob)
    builder.add_edge(START, "alice")

    with stage.rollout():
        builder.compile().invoke({"messages": [HumanMessage("hi")]})

    assert stage.trained() == ["alice", "bob"]
    assert stage.tree() == [
        "invoke_node alice",
        "  call alice",
        "  handoff bob",
        "invoke_node bob",
        "  call bob",
    ]


# map and reduce


class Topic(TypedDict):
    topic: str


class Topics(TypedDict, total=False):
    about: str
    topics: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


def jokes(stage: Stage) -> Any:
    def generate_topics(state: Topics) -> Topics:
        return {"topics": str(stage.model().invoke(state["about"]).content).split()}

    def continue_to_jokes(state: Topics) -> list[Send]:
        return [Send("generate_joke", {"topic": topic}) for topic in state["topics"]]

    def generate_joke(state: Topic) -> Topics:
        return {"jokes": [str(stage.model().invoke(state["topic"]).content)]}

    def best_joke(state: Topics) -> Topics:
        return {"best": state["jokes"][0]}

    builder = StateGraph(Topics)
    builder.add_node("generate_topics", generate_topics)
    builder.add_node("generate_joke", generate_joke)
    builder.add_node("best_joke", best_joke)
    builder.add_edge(START, "generate_topics")
    builder.add_conditional_edges("generate_topics", continue_to_jokes, ["generate_joke"])
    builder.add_edge("generate_joke", "best_joke")
    return builder.compile()


def test_each_branch_of_a_map_has_its_own_span(stage: Stage) -> None:
    stage.script = lambda prompt: "lions elephants" if prompt.last == "animals" else f"a joke on {prompt.last}"

    with stage.rollout():
        state = jokes(stage).invoke({"about": "animals"})

    assert state["jokes"] == ["a joke on lions", "a joke on elephants"]
    assert stage.trained() == ["generate_topics", "generate_joke", "generate_joke"]
    tree = stage.tree()
    assert tree.count("invoke_node generate_joke") == 2
    assert tree[:2] == ["invoke_node generate_topics", "  call generate_topics"]
    for number, line in enumerate(tree):
        if line == "invoke_node generate_joke":
            assert tree[number + 1] == "  call generate_joke"
    assert tree[-1] == "invoke_node best_joke"


# a person in the loop


def test_an_interrupt_is_no_error_and_the_graph_goes_on_afterwards(stage: Stage) -> None:
    def ask_human(state: MessagesState) -> dict[str, Any]:
        approved = interrupt("ok?")
        return {"messages": [stage.model().invoke(f"{state['messages'][0].content}: {approved}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask_human", ask_human)
    builder.add_edge(START, "ask_human")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}

    with stage.rollout():
        stopped = graph.invoke({"messages": [HumanMessage("Delete?")]}, config)
        assert stopped["__interrupt__"][0].value == "ok?"
        result = graph.invoke(Command(resume="yes"), config)

    assert result["messages"][-1].content == "You said: Delete?: yes"
    assert stage.trained() == ["ask_human"]
    assert stage.tree() == ["invoke_node ask_human", "invoke_node ask_human", "  call ask_human"]
    assert {span.status.status_code.name for span in stage.kept() if span.name == "invoke_node ask_human"} == {"UNSET"}


# the functional API


def test_tasks_of_the_functional_api_are_agents(stage: Stage) -> None:
    model = stage.model()

    @task
    def write_essay(topic: str) -> str:
        return str(model.invoke(f"essay about {topic}").content)

    @task
    def score_essay(essay: str) -> str:
        return str(model.invoke(f"score {essay}").content)

    @entrypoint()
    def workflow(topic: str) -> str:
        return score_essay(write_essay(topic).result()).result()

    stage.answers("an essay", "7")
    with stage.rollout():
        assert workflow.invoke("cats") == "7"

    assert stage.trained() == ["write_essay", "score_essay"]
    assert stage.tree() == [
        "invoke_node workflow",
        "  invoke_node write_essay",
        "    call write_essay",
        "  invoke_node score_essay",
        "    call score_essay",
    ]


# subgraphs


def test_the_innermost_node_is_the_agent(stage: Stage) -> None:
    def inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": [stage.model().invoke(state["messages"])]}

    def outer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [stage.model().invoke(state["messages"])]}

    subgraph = StateGraph(MessagesState)
    subgraph.add_node("inner", inner)
    subgraph.add_edge(START, "inner")
    builder = StateGraph(MessagesState)
    builder.add_node("outer", outer)
    builder.add_node("sub", subgraph.compile())
    builder.add_edge(START, "outer")
    builder.add_edge("outer", "sub")

    with stage.rollout():
        builder.compile().invoke({"messages": [HumanMessage("hi")]})

    assert stage.trained() == ["outer", "inner"]
    assert stage.tree() == [
        "invoke_node outer",
        "  call outer",
        "invoke_node sub",
        "  invoke_node inner",
        "    call inner",
    ]


def test_an_agent_without_a_name_takes_that_of_its_node(stage: Stage) -> None:
    stage.answers(tool_call("get_weather", city="sf"), "Sunny.")
    builder = StateGraph(MessagesState)
    builder.add_node("forecaster", create_agent(stage.model(), tools=[get_weather]))
    builder.add_edge(START, "forecaster")

    with stage.rollout():
        builder.compile().invoke({"messages": [HumanMessage("hi")]})

    assert stage.trained() == ["forecaster", "forecaster"]
    assert stage.said("execute_tool get_weather")["gen_ai.agent.name"] == "forecaster"


# retrieval with a chain


def test_a_chain_is_an_agent_by_the_name_it_was_given(stage: Stage) -> None:
    def retrieve(_question: str) -> list[str]:
        return ["one", "two"]

    def format_docs(docs: list[str]) -> str:
        return "\n".join(docs)

    prompt = ChatPromptTemplate.from_template("Answer by {context}: {question}")
    context = RunnableLambda(retrieve) | format_docs
    chain = {"context": context, "question": RunnablePassthrough()} | prompt | stage.model() | StrOutputParser()

    with stage.rollout():
        answer = chain.with_config(run_name="answerer").invoke("why?")

    assert answer == "You said: Answer by one\ntwo: why?"
    assert stage.trained() == ["answerer"]
    assert stage.tree() == ["invoke_agent answerer", "  call answerer"]
